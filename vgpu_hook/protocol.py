"""What the hook and the daemon say to each other over the Unix socket. Bytes in, bytes out.

One connection carries one call:

    client (hooks/qemu)         daemon
                                greeting              it is there and will answer
    frame(expiry, arguments..., xml)                  expiry: CLOCK_MONOTONIC, in ms
                                frame(status, stderr, output)

A frame is a netstring of netstrings (`5:hello,`). The client sends nothing before it has the
greeting, so that a daemon that does not greet can't do what the hook then does itself; and a
daemon that comes to it after the expiry must not do it any more. The greeting carries the version,
another one than the client's being refused by closing, and what the client makes the expiry of:
the clock, and the time that a call may take.
"""

from __future__ import annotations

from typing import NamedTuple

VERSION = 4
MAX_FRAME = 17 << 20
"""Bytes. A domain's XML is some ten thousand; no more than 16 MiB of it is ever read."""


class Answer(NamedTuple):
    """What becomes of a call: exit status, a line for stderr, and XML for stdout if it changes."""

    status: int
    stderr: str = ""
    output: bytes = b""


class LetGoOn(Answer):
    """The answer to a call that has failed and must not fail (R3). The hook is not told."""

    __slots__ = ()


class ProtocolError(Exception):
    """The other side said something else."""


def greeting(now: float, seconds: float) -> bytes:
    """Return the greeting; `now` is CLOCK_MONOTONIC, `seconds` what a call may take."""
    return b"vgpu-hook %d %d %d\n" % (VERSION, now * 1000, seconds * 1000)


def frame(*parts: bytes) -> bytes:
    """Return the parts as one frame."""
    return _netstring(b"".join(_netstring(part) for part in parts))


def length(head: bytes) -> int | None:
    """Return how many bytes the frame that begins so has in all; None if that needs more."""
    digits, colon, _ = head.partition(b":")
    if len(digits) > 9 or (not digits.isdigit() and head != b""):
        raise ProtocolError("no frame")
    if not colon:
        return None
    size = len(digits) + 1 + int(digits) + 1
    if size > MAX_FRAME:
        raise ProtocolError("too long")
    return size


def parts(data: bytes) -> list[bytes]:
    """Return the parts of a whole frame."""
    start, end = _part(data, 0)
    if end + 1 != len(data):
        raise ProtocolError("more than one frame")
    found = []
    while start < end:
        first, last = _part(data, start)
        if last >= end:
            raise ProtocolError("a part that is longer than its frame")
        found.append(data[first:last])
        start = last + 1
    return found


def _netstring(data: bytes) -> bytes:
    return b"%d:%s," % (len(data), data)


def _part(data: bytes, start: int) -> tuple[int, int]:
    """Return where the bytes of the netstring that begins at `start` begin and end."""
    colon = data.find(b":", start, start + 10)
    digits = data[start:colon]
    if colon < 0 or not digits.isdigit():
        raise ProtocolError("no frame")
    end = colon + 1 + int(digits)
    if data[end : end + 1] != b",":
        raise ProtocolError("a frame that ends too early")
    return colon + 1, end
