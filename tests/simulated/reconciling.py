"""A reconcile as a process, with a libvirt that says what the test wants: the worst that it can.

libvirt knows no domain, so all that is on record is an orphan to it; and it may take its time to
say so, while a start comes and goes (`hold`). The rest is the real thing.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.product import PATIENCE, Product

RECONCILE = """
import json, os, sys, time
from vgpu_hook import config, context
from vgpu_hook.reconcile import Reconciler
asked, answer = sys.argv[1:]
settings = config.load()
opened = context.store(settings)

def libvirt():
    if asked:
        open(asked, "w").close()
        while not os.path.exists(answer):
            time.sleep(0.01)
    return {}

def lifecycle():
    return context.lifecycle(settings, opened, "reconcile")

found = Reconciler(opened, lifecycle, libvirt, lambda domain_uuid: None).run()
print(json.dumps([[one.device, one.action] for one in found]))
"""


class Finding(NamedTuple):
    device: str
    action: str


class Reconcile:
    """One run; `hold` is a folder for its signals, if libvirt is to wait until `go_on`."""

    def __init__(self, product: Product, hold: Path | None = None) -> None:
        self._asked = hold / "asked" if hold else None
        self._answer = hold / "answer" if hold else None
        self._product = product
        names = [str(path or "") for path in (self._asked, self._answer)]
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", RECONCILE, *names],
            env=product.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )

    def wait_until_it_asks(self) -> None:
        """Wait until it has read the records, and is asking libvirt."""
        assert self._asked is not None
        self._product.wait_for("it asks libvirt", self._asked.exists)

    def go_on(self) -> None:
        assert self._answer is not None
        self._answer.touch()

    def result(self) -> list[Finding]:
        out, _ = self._process.communicate(timeout=PATIENCE)
        assert self._process.returncode == 0
        return [Finding(*one) for one in json.loads(out)]
