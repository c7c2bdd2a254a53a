"""Several hook calls at once, and calls that are killed half way (I7, I8)."""

from __future__ import annotations

import signal
import subprocess

import pytest

from tests.domains import device_of, domain_xml, uuid_of
from tests.product import PATIENCE, Product

A = domain_xml("a", {"0": "mtty-1"})
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


@pytest.mark.simhost("nvidia-two-t4")
def test_i8_n_starts_on_one_slot_less(product: Product) -> None:
    names = [f"vm{number}" for number in range(5)]  # each card holds two of 8 GB
    calls = [
        product.popen(name, "prepare", domain_xml(name, {"0": "GRID T4-8Q"})) for name in names
    ]
    results = [finish(call) for call in calls]
    assert sorted(status for status, _ in results) == [0, 0, 0, 0, 1]
    assert len(product.sim.devices()) == 4
    assert sorted(product.rows("state")) == [("assigned",)] * 4
    assert sum("no free instance" in error for _, error in results) == 1


def test_i8_parallel_starts_and_stops_of_one_domain_end_in_one_state(product: Product) -> None:
    calls = [product.popen("a", operation, A) for operation in ("prepare", "stopped") * 4]
    for call in calls:
        status, error = finish(call)
        assert (status, error) == (0, "")
    assert len(product.sim.devices()) == len(product.rows()) <= 1
    product.hook("a", "stopped", A)
    assert product.sim.devices() == []
    assert product.rows() == []


@pytest.mark.parametrize("operation", ["prepare", "stopped"])
def test_i7_a_call_killed_in_its_kernel_write_is_made_good_by_the_next(
    product: Product, operation: str
) -> None:
    if operation == "stopped":
        product.hook("a", "prepare", A)
    attribute = "create" if operation == "prepare" else "remove"
    product.sim.fault("write", f"sys/*/{attribute}", "slow:2", times=1)
    call = product.popen("a", operation, A)
    while not product.rows("state") or product.rows("state")[0][0] not in (
        "creating",
        "releasing",
    ):
        assert call.poll() is None
    call.send_signal(signal.SIGKILL)
    finish(call)
    assert product.hook("a", "stopped", A) == (0, "", "")
    assert product.rows() == []
    assert product.sim.devices() == []


def test_r12_a_late_release_does_not_touch_what_a_later_start_made(product: Product) -> None:
    product.hook("a", "prepare", A)
    old = product.rows("generation")
    product.hook("a", "prepare", A)
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
    assert product.sim.devices() == [device_of(uuid_of("a"))]
    assert product.rows() == [("a", "0", "assigned")]


def test_r10_a_domain_under_deletion_is_not_started_and_keeps_its_mark(product: Product) -> None:
    product.hook("a", "prepare", A)
    product.query(f"UPDATE domain SET deleting_since = '2026-01-01' WHERE uuid = '{uuid_of('a')}'")
    answer = product.hook("a", "prepare", A)
    assert answer.status == 1
    assert "'a' is being deleted (since 2026-01-01)" in answer.err
    product.hook("a", "stopped", A)
    product.hook("a", "release", A)
    assert product.query("SELECT deleting_since FROM domain") == [("2026-01-01",)]
    assert product.sim.devices() == []
