"""Calls of the hook with anything on stdin, in this process and as libvirt does it, and what holds.

Whatever comes: exit status 0, or one line of stderr and the status of a refusal, from an operation
that can be refused; on stdout nothing, or a whole domain from one that libvirt takes it from. A
restore never fails: what it prints may say why the start with it is refused, and that start is.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from hypothesis import strategies as st
from lxml import etree

from tests.fuzz.domains import OPERATIONS, Subject
from tests.fuzz.mutations import inputs
from tests.product import PATIENCE, Answer, Product
from tests.simhost import SimHost
from tests.simulated.arrivals import besides_note, noted
from vgpu_hook import hook

INSIDE, PROCESS = "inside", "process"
"""The levels: hook.serve in this process, and hooks/qemu, which takes several times as long."""

REFUSABLE = ("prepare", "migrate")
ARRIVALS = ("restore", "migrate")
NEVER = ("Traceback", "internal error", "process that did it died", "has not returned within")
OF_LIBXML2 = "can't be read: internal error: Huge input lookup"
"""libxml2's own words for more than 10 MB of text, in a proper refusal."""
WRITABLE = re.compile(r"sys/.*/(create|remove|current_vgpu_type|vgpu_params)")


class Call(NamedTuple):
    """One call of the hook, on one of the levels."""

    level: str
    name: str
    operation: str
    xml: bytes


class Hang(Exception):
    """The hook has not answered for PATIENCE seconds."""


@st.composite
def calls(draw: st.DrawFn, subject: Subject, level: str) -> Call:
    name, xml = draw(inputs(subject))
    return Call(level, _argument(name), draw(st.sampled_from(OPERATIONS)), xml)


def _argument(name: str) -> str:
    """Return a name as an argument of a process can be."""
    return name.replace("\0", "")[:4000]


class Fuzzed:
    """The product on one simulated host; counts the calls, and keeps the smallest that failed."""

    def __init__(self, subject: Subject, product: Product, tried: Counter[str]) -> None:
        self.subject = subject
        self.product = product
        self.tried = tried
        self.failed: tuple[Call, str] | None = None

    def check(self, call: Call) -> None:
        """Do the call. Raises AssertionError if what must hold does not."""
        self.tried[call.level] += 1
        try:
            answer = self._do(call)
            check_answer(call, answer)
            reason = noted(answer.out.encode()) if answer.out else ""
            self.tried["refused"] += answer.status != 0 or reason != ""
            self.tried["rewritten"] += answer.out != "" and not reason
            if reason:
                self.tried["noted"] += 1
                assert call.operation == "restore", "noted why, and went on"
                start = call._replace(operation="prepare", xml=answer.out.encode())
                refused = self._do(start)
                check_answer(start, refused)
                assert refused.err == f"vgpu-hook: {reason}\n", "refused for another reason"
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            if self.failed is None or len(call.xml) < len(self.failed[0].xml):
                self.failed = call, text
            raise

    def check_host(self) -> None:
        """What holds after all of them: writes to the right files alone, and a store that reads."""
        odd = [write for write in self.product.sim.writes() if not WRITABLE.fullmatch(write.path)]
        assert odd == []
        status = self.product.command("status")
        assert status.status == 0, status.err

    def _do(self, call: Call) -> Answer:
        return self._inside(call) if call.level == INSIDE else self._process(call)

    def _inside(self, call: Call) -> Answer:
        out, err = io.BytesIO(), io.StringIO()
        os.environ["VGPU_HOOK_CONFIG"] = str(self.product.config)
        arguments = [call.name, call.operation, "begin", "-"]
        with (
            _watchdog(),
            contextlib.redirect_stdout(io.TextIOWrapper(out, "utf-8")) as stdout,
            contextlib.redirect_stderr(err),
        ):
            found = hook.serve(arguments, call.xml)
            stdout.flush()
        line = f"{found.stderr}\n" if found.stderr else ""  # as hooks/qemu ends it
        printed, said = out.getvalue() + found.output, err.getvalue() + line
        return Answer(found.status, printed.decode(), said)

    def _process(self, call: Call) -> Answer:
        answer = self.product.hook(call.name, call.operation, call.xml)
        assert answer.status in (0, 1)  # hooks/qemu's own for a refusal
        return answer._replace(status=hook.REFUSED if answer.status else 0)


def check_answer(call: Call, answer: Answer) -> None:
    """Check one answer. Raises AssertionError."""
    assert answer.status in (0, hook.REFUSED), f"exit status {answer.status}"
    lines = answer.err.splitlines()
    if answer.status == 0:
        assert lines == [], f"went on, and said {lines[0]!r}"
    else:
        assert call.operation in REFUSABLE, "refused what can't be refused"
        assert answer.out == "", "refused, and printed XML"
        assert len(lines) == 1, f"{len(lines)} lines of stderr: {lines[:3]}"
        assert lines[0].startswith("vgpu-hook: "), lines[0]
    own = answer.err.replace(OF_LIBXML2, "")
    for text in NEVER:
        assert text not in own, answer.err[:2000]
    if answer.out:
        assert call.operation in ARRIVALS, "printed XML that libvirt does not take"
        xml = call.xml if call.level == INSIDE else call.xml.replace(b"\0", b"")  # as sh reads it
        given, printed = (etree.fromstring(data) for data in (xml, answer.out.encode()))
        assert printed.tag == "domain"
        for tag in ("name", "uuid", "memory"):
            assert printed.findtext(tag) == given.findtext(tag), f"<{tag}> was changed"
        if noted(answer.out.encode()):
            same = besides_note(answer.out.encode()) == besides_note(xml)
            assert same, "more was changed than the reason"


@contextlib.contextmanager
def _watchdog() -> Iterator[None]:
    def expired(number: int, frame: FrameType | None) -> None:
        raise Hang(f"no answer for {PATIENCE} s")

    before = signal.signal(signal.SIGALRM, expired)
    signal.alarm(PATIENCE)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def started(subject: Subject, tried: Counter[str]) -> Iterator[Fuzzed]:
    """Start the subject's host, empty, with the product on it."""
    with SimHost.start(subject.host) as sim, tempfile.TemporaryDirectory() as folder:
        yield Fuzzed(subject, Product(sim, Path(folder)), tried)


def reproduction(fuzzed: Fuzzed) -> str:
    """Return what the smallest call that failed was, and the command that does it again."""
    if fuzzed.failed is None:
        return f"on the host {fuzzed.subject.host}, and no single call did it"
    call, text = fuzzed.failed
    with tempfile.NamedTemporaryFile(prefix="vgpu-hook-fuzz-", suffix=".xml", delete=False) as file:
        file.write(call.xml)
    words = [fuzzed.subject.host, call.level, call.name, call.operation, file.name]
    command = shlex.join([".venv/bin/python", "-m", "tests.fuzz", "again", "--", *words])
    shown = call.xml if len(call.xml) < 4000 else call.xml[:2000] + b" ... " + call.xml[-2000:]
    return f"{text}\nstdin: {shown!r}\nagain, on an empty host: {command}"
