"""Several hook calls at once, and calls that are killed half way (I7, I8), on both frameworks."""

from __future__ import annotations

import signal
import subprocess

import pytest

from tests.domains import uuid_of
from tests.product import PATIENCE, Product
from tests.simulated.kinds import Kind, MdevKind, VfKind

LATE_CALL = """
from vgpu_hook import config, log, store_file
from vgpu_hook.bounded import Deadline
from vgpu_hook.host import Host
from vgpu_hook.lifecycle import Context, Lifecycle
settings = config.load()
host = Host(settings, settings.roots.boot_id())
store = store_file.open_store(settings.state, "late", wait=5)
events = log.JournalLog("/nonexistent", "late")
Lifecycle(Context(settings, host, store, events, Deadline(30)))."""


def finish(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    _, error = process.communicate(timeout=PATIENCE)
    return process.returncode, error.decode()


@pytest.mark.parametrize(
    ("kind", "profile"),
    [
        # Two cards that hold two each; one card that holds four, on more VFs than that.
        pytest.param(MdevKind, "GRID T4-8Q", marks=pytest.mark.simhost("nvidia-two-t4"), id="mdev"),
        pytest.param(
            VfKind, "NVIDIA L40S-12Q", marks=pytest.mark.simhost("l40s"), id="vendor-vfio"
        ),
    ],
    indirect=["kind"],
)
def test_i8_n_starts_on_one_slot_less(product: Product, kind: Kind, profile: str) -> None:
    names = [f"vm{number}" for number in range(5)]
    calls = [product.popen(name, "prepare", kind.xml(name, profile)) for name in names]
    results = [finish(call) for call in calls]
    assert sorted(status for status, _ in results) == [0, 0, 0, 0, 1]
    started = [kind.device(n) for n, (status, _) in zip(names, results, strict=True) if status == 0]
    assert sorted(kind.present()) == sorted(started)
    assert sorted(product.rows("state")) == [("assigned",)] * 4
    assert sum("no free instance" in error for _, error in results) == 1


def test_i8_parallel_starts_and_stops_of_one_domain_end_in_one_state(
    product: Product, kind: Kind
) -> None:
    a = kind.xml("a")
    calls = [product.popen("a", operation, a) for operation in ("prepare", "stopped") * 4]
    for call in calls:
        status, error = finish(call)
        assert (status, error) == (0, "")
    assert len(kind.present()) == len(product.rows()) <= 1
    product.hook("a", "stopped", a)
    assert kind.present() == {}
    assert product.rows() == []


@pytest.mark.parametrize("operation", ["prepare", "stopped"])
def test_i7_a_call_killed_in_its_kernel_write_is_made_good_by_the_next(
    product: Product, kind: Kind, operation: str
) -> None:
    a = kind.xml("a")
    if operation == "stopped":
        product.hook("a", "prepare", a)
        kind.fail_remove("slow:2", times=1)
    else:
        kind.fail_create("slow:2", times=1)
    call = product.popen("a", operation, a)
    while not product.rows("state") or product.rows("state")[0][0] not in (
        "creating",
        "releasing",
    ):
        assert call.poll() is None
    call.send_signal(signal.SIGKILL)
    finish(call)
    assert product.hook("a", "stopped", a) == (0, "", "")
    assert product.rows() == []
    assert kind.present() == {}


def test_r12_a_late_release_does_not_touch_what_a_later_start_made(
    product: Product, kind: Kind
) -> None:
    a = kind.xml("a")
    product.hook("a", "prepare", a)
    old = product.rows("generation")
    product.hook("a", "prepare", a)
    assert product.rows("generation") > old
    call = f"release_all({uuid_of('a')!r}, frozenset([{old[0][0]}]))"
    product.sim.reset_writes()
    subprocess.run(
        [product.environment["VGPU_HOOK_PYTHON"], "-c", LATE_CALL + call],
        env=product.environment,
        check=True,
        timeout=PATIENCE,
    )
    assert product.sim.writes() == []
    assert kind.present() == kind.vgpus("a")
    assert product.rows() == [("a", "0", "assigned")]


def test_r10_a_domain_under_deletion_is_not_started_and_keeps_its_mark(
    product: Product, kind: Kind
) -> None:
    a = kind.xml("a")
    product.hook("a", "prepare", a)
    product.query(f"UPDATE domain SET deleting_since = '2026-01-01' WHERE uuid = '{uuid_of('a')}'")
    answer = product.hook("a", "prepare", a)
    assert answer.status == 1
    assert "'a' is being deleted (since 2026-01-01)" in answer.err
    product.hook("a", "stopped", a)
    product.hook("a", "release", a)
    assert product.query("SELECT deleting_since FROM domain") == [("2026-01-01",)]
    assert kind.present() == {}
