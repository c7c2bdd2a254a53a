"""What every answer to hostile input must be like, and calls of the hook in a small memory.

Knows nothing of the product's code.
"""

from __future__ import annotations

import re
import resource
import subprocess
import unicodedata
from functools import partial
from pathlib import Path

from tests.product import HOOK, PATIENCE, Answer, Product

NOBODY = 65534
LINE_MOST = 4000
"""Characters of a message that people can still read."""

NEVER = ("Traceback", "internal error: ", "process that did it died")
OF_LIBXML2 = re.compile(r"can't be read: internal error: ")


def plain(text: str) -> bool:
    """Tell whether nothing in the text can steer a terminal."""
    return not any(unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") for c in text)


def check(answer: Answer, operation: str) -> None:
    """Check I4 and I5, and that a refusal is one short line that says what is wrong."""
    refusable = operation in ("prepare", "migrate")
    assert answer.status in ((0, 1) if refusable else (0,)), answer
    assert answer.out == "" or operation in ("restore", "migrate"), answer.out[:1000]
    if answer.status == 0:
        assert answer.err == ""
        return
    assert answer.out == ""
    line = answer.err.removesuffix("\n")
    assert line.startswith("vgpu-hook: "), line[:1000]
    assert plain(line), line[:1000]
    assert len(line) <= LINE_MOST, f"{len(line)} characters"
    own = OF_LIBXML2.sub("", line)
    assert not any(word in own for word in NEVER), line[:1000]


def call(
    product: Product, name: str | bytes, operation: str, xml: bytes, *, memory: int | None = None
) -> Answer:
    """Do one hook call, in `memory` bytes of address space for each process if given, and check."""
    limit = partial(resource.setrlimit, resource.RLIMIT_AS, (memory, memory)) if memory else None
    done = subprocess.run(
        [str(HOOK), name, operation, "begin", "-"],
        input=xml,
        env=product.environment,
        cwd="/",
        capture_output=True,
        timeout=PATIENCE,
        preexec_fn=limit,
    )
    answer = Answer(done.returncode, done.stdout.decode(), done.stderr.decode())
    check(answer, operation)
    return answer


def as_nobody(folder: Path, *argv: str, xml: bytes = b"", **environment: str) -> Answer:
    """Run a program as a user who has nothing, in a folder that it may enter."""
    done = subprocess.run(
        argv,
        input=xml,
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", **environment},
        cwd=folder,
        capture_output=True,
        timeout=PATIENCE,
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
    )
    return Answer(done.returncode, done.stdout.decode(), done.stderr.decode())


def open_up(*folders: Path) -> None:
    """Let everybody pass through these folders, and what is above them."""
    for folder in folders:
        for one in (folder, *folder.parents):
            if one.stat().st_mode & 0o001 == 0:
                one.chmod(one.stat().st_mode | 0o011)


PYTHON = "/usr/bin/python3"
"""One that nobody may run: the tests' own may be below /root."""
