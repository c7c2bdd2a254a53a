"""Moments of a hook call at which it can be held up, on both frameworks, and how to see it there.

Each is made longer by a fault of the simulated kernel, so that a test can act in the middle of it.
"""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase

from tests.product import Product
from tests.simhost.client import Write
from tests.simulated.kinds import Kind, MdevKind

SLOW = "slow:1.5"

BEFORE_CREATE = "before create"
IN_CREATE = "in create"
AFTER_CREATE = "after create"
IN_DESTROY = "in destroy"
AFTER_DESTROY = "after destroy"
STARTING = (BEFORE_CREATE, IN_CREATE, AFTER_CREATE)
STOPPING = (IN_DESTROY, AFTER_DESTROY)


def creations(kind: Kind) -> list[Write]:
    """Return the writes that were to make a vGPU, and have ended."""
    if isinstance(kind, MdevKind):
        return kind.sim.writes("sys/*/create")
    return [w for w in kind.sim.writes("sys/*/current_vgpu_type") if w.data.strip() != "0"]


def standing(kind: Kind) -> int:
    """Return how many vGPUs were made and not taken away, by the log of writes alone."""
    made, taken = creations(kind), kind.removals()
    return sum(w.outcome == "ok" for w in made) - sum(w.outcome == "ok" for w in taken)


def hold_up(kind: Kind, moment: str, action: str = SLOW) -> None:
    """Have the next call take long at that moment, once; with the action `hang`, until `heal`."""
    if moment == BEFORE_CREATE:
        kind.sim.fault("read", kind.free_file, action, times=1)
    elif moment == IN_CREATE:
        kind.fail_create(action, times=1)
    elif moment == IN_DESTROY:
        kind.fail_remove(action, times=1)
    else:
        # In what is read back right after the write.
        mdev = isinstance(kind, MdevKind)
        file, reading = "current_vgpu_type", "read"
        if mdev:
            file = "create" if moment == AFTER_CREATE else "remove"
            reading = "readlink" if moment == AFTER_CREATE else "read"
        after = f"after 1 write sys/*/{file} outcome=ok"
        kind.sim.control(f"{after} fault {reading} * {action} times=1")


def reached(product: Product, kind: Kind, moment: str) -> Callable[[], bool]:
    """Return what tells that a call has come to that moment; `product.sim` was reset before."""
    if moment == BEFORE_CREATE:
        return lambda: any(fnmatchcase(path, kind.free_file) for path in product.sim.reads())
    if moment in (IN_CREATE, IN_DESTROY):
        state = "creating" if moment == IN_CREATE else "releasing"
        return lambda: product.rows("state") == [(state,)]
    done = creations if moment == AFTER_CREATE else type(kind).removals
    return lambda: any(write.outcome == "ok" for write in done(kind))
