"""Mounts a simulated host and serves it until the mount or whoever started it is gone.

    python -m tests.simhost.serve HOST MOUNTPOINT [--until-eof] [...]

One thread does it all; another only waits for the end of stdin. However it ends, the mount is taken
away and calls that still block are aborted: the kernel does that when /dev/fuse is closed.
"""

from __future__ import annotations

import _thread
import argparse
import errno
import os
import select
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType

from . import wire
from .fs import FileSystem
from .host import Host
from .hostfile import load


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simhost.serve")
    parser.add_argument("host", help="a name in hosts/ or the path of a host file")
    parser.add_argument("mountpoint")
    parser.add_argument("--foreground", action="store_true", help="it always stays there")
    parser.add_argument("--ready-fd", type=int, help="where a line is written once it is mounted")
    parser.add_argument("--until-eof", action="store_true", help="end at the end of stdin")
    parser.add_argument("--temporary", action="store_true", help="remove the mount point too")
    parser.add_argument("--dev-links", default="/dev", help="what links in /proc/*/fd begin with")
    args = parser.parse_args(argv)
    host = Host(load(args.host), args.dev_links)
    try:
        serve(host, args.mountpoint, args.ready_fd, args.until_eof)
    finally:
        if args.temporary:
            with suppress(OSError):
                os.rmdir(args.mountpoint)
    return 0


def serve(host: Host, mountpoint: str, ready_fd: int | None, until_eof: bool) -> None:
    """Returns when it is unmounted, at SIGTERM or SIGINT, or at the end of stdin if asked to."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    fuse = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    system = FileSystem(host, lambda unique, error, data: wire.reply(fuse, unique, error, data))
    wire.mount(fuse, mountpoint)
    try:
        if ready_fd is not None:
            os.write(ready_fd, b"ready\n")
            os.close(ready_fd)
        if until_eof:
            _thread.start_new_thread(_end_at_eof, (sys.stdin.fileno(),))
        _loop(host, system, fuse)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        wire.unmount(mountpoint)
        os.close(fuse)


def _stop(number: int, frame: FrameType | None) -> None:
    sys.exit(0)


def _end_at_eof(stdin: int) -> None:
    """Whoever started this is gone."""
    while os.read(stdin, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _loop(host: Host, system: FileSystem, fuse: int) -> None:
    """Until it is unmounted. A request costs two system calls as long as no timer runs."""
    poll = select.poll()
    poll.register(fuse, select.POLLIN)
    buffer = bytearray(wire.BUFFER_SIZE)
    view = memoryview(buffer)
    blocking = False
    while True:
        wait = host.next_timer()
        if blocking is not (wait is None):
            blocking = not blocking
            os.set_blocking(fuse, blocking)
        if wait is not None:
            poll.poll(int(wait * 1000) + 1)
            host.run_timers()
        try:
            length = os.readv(fuse, [buffer])
        except OSError as error:
            if error.errno == errno.ENODEV:
                return
            if error.errno not in (errno.EAGAIN, errno.ENOENT, errno.EINTR):
                raise
        else:
            system.handle(view[:length])


if __name__ == "__main__":
    sys.exit(main())
