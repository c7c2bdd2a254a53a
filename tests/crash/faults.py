"""The disk under the store is full, read-only or broken from one of its calls on (I3, I4, R14)."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from tests.asking import ask
from tests.crash import callers
from tests.crash.scenarios import NAME, Scenario
from tests.crash.shim import FAIL_FROM_THERE, FAIL_ONCE, FILES, READS, Shim
from tests.crash.world import World
from tests.domains import domain_xml
from tests.product import Answer

ERRORS = (errno.ENOSPC, errno.EROFS, errno.EIO)
CAUSES = (
    "disk is full",
    "readonly database",
    "unable to open database file",
    "disk I/O error",
    "disk image is malformed",
    "No space left",
    "Read-only file system",
    "Input/output error",
)
"""What SQLite and the system make of them: SQLite has names of its own for the places."""
EXTENTS = {"from there on": FAIL_FROM_THERE, "once": FAIL_ONCE}

Call = Callable[[str, str, bytes], Answer]


@contextmanager
def alone(world: World, shim: Shim) -> Iterator[Call]:
    """Calls that the hook does itself."""
    yield lambda name, operation, xml: callers.hook(world.product, shim, name, operation, xml)


@contextmanager
def served(world: World, shim: Shim) -> Iterator[Call]:
    """Calls that a daemon does; what it answers is what the hook would say."""

    def call(name: str, operation: str, xml: bytes) -> Answer:
        words = (name, operation, "begin", "-")
        answer = ask(world.product.runtime, words, xml, 60)
        assert answer is not None, "the daemon has not answered"
        return Answer(answer.status and 1, answer.output.decode(), answer.stderr)

    world.reset()
    with closing(callers.Daemons(world.product, shim)) as daemons, daemons.running():
        yield call


class StoreFaults:
    """One scenario, with faults put in at each of its calls on the state folder."""

    def __init__(self, world: World, scenario: Scenario, folder: Path) -> None:
        self._world = world
        self._scenario = scenario
        folder.mkdir()
        self.shim = Shim(folder, [world.product.state])
        self.refused = 0
        self.tried = 0

    def count(self, call: Call, scope: int) -> int:
        self._scenario.begin(self._world)
        self.shim.order(scope=scope)
        assert call(NAME, self._scenario.operation, self._scenario.xml(self._world)).status == 0
        found = self.shim.count
        self.shim.order(scope=0)
        self._is_well_again()
        return found

    def each(self, call: Call, errors: list[int], extents: list[str], step: int = 1) -> None:
        """Put in each of the faults at every `step`th call."""
        for error in errors:
            scope = FILES | READS if error == errno.EIO else FILES
            for extent in extents:
                for point in range(1, self.count(call, scope) + 1, step):
                    name = errno.errorcode[error]
                    try:
                        self._one(call, point, error, extent, scope)
                    except AssertionError as failure:
                        at = f"{self._scenario.name}, {name} {extent} at {point}"
                        raise AssertionError(f"{at}: {failure}") from failure

    def _one(self, call: Call, point: int, error: int, extent: str, scope: int) -> None:
        world, scenario = self._world, self._scenario
        scenario.begin(world)
        xml = scenario.xml(world)
        self.shim.order(point, EXTENTS[extent], error, scope=scope)
        answer = call(NAME, scenario.operation, xml)
        assert self.shim.failed > 0, "nothing was failed"
        self.tried += 1
        assert call("plain", scenario.operation, domain_xml("plain")) == (0, "", "")  # R14
        if scenario.operation in ("stopped", "release"):
            assert answer == (0, "", "")
            following = ["release"]
        else:
            self._started_or_told(answer)
            following = ["stopped", "release"]
        if point % 2:  # libvirt goes on before the disk is well again
            for operation in following:
                assert call(NAME, operation, xml) == (0, "", "")
        self.shim.order(scope=0)
        self._is_well_again()

    def _started_or_told(self, answer: Answer) -> None:
        """The start works, or is refused with the store's path and the cause."""
        if answer.status == 0:
            assert (answer.out, answer.err) == ("", "")
            devices = {self._world.kind.device(NAME, slot) for slot in self._scenario.slots}
            assert devices <= self._world.present().keys()
            return
        self.refused += 1
        assert (answer.status, answer.out) == (1, "")
        assert answer.err.startswith("vgpu-hook: "), answer
        assert len(answer.err.splitlines()) == 1
        assert str(self._world.product.state) in answer.err, answer
        # The advice to begin with a new store would lose the records of a good one.
        assert "set-aside" not in answer.err or "malformed" in answer.err, answer
        assert any(cause in answer.err for cause in CAUSES), answer

    def _is_well_again(self) -> None:
        """Nothing has leaked once the disk is well and reconcile has run (R7)."""
        self._world.sim.heal()
        self._world.check()
        self._world.reconcile()
        self._world.is_clean(NAME)
