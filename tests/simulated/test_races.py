"""Several hook calls at once, and calls that are killed half way (I7, I8), on both frameworks."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable

import pytest

from tests.domains import domain_xml, uuid_of
from tests.product import PATIENCE, Product
from tests.simulated.kinds import Kind, VfKind
from tests.simulated.two_cards import TWO_CARDS

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


WINDOWS: dict[str, Callable[[Kind], None]] = {
    "as it comes": lambda kind: None,
    "slow creates": lambda kind: kind.fail_create("slow:0.3", times=3),
    "slow looks": lambda kind: kind.sim.fault("read", kind.free_file, "slow:0.1", times=20),
    "late looks": lambda kind: kind.sim.fault("read", kind.free_file, "slow:0.5", nth=7, times=2),
}
"""What widens the time between looking, asking and knowing, in one place after the other."""


@pytest.mark.parametrize(
    "kind",
    [pytest.param(k, marks=pytest.mark.simhost(k.host), id=k.name) for k in TWO_CARDS],
    indirect=True,
)
def test_i8_n_starts_on_one_slot_less_over_two_cards(served: Product, kind: Kind) -> None:
    names = [f"vm{number}" for number in range(kind.room + 1)]
    for window, widen in WINDOWS.items():
        widen(kind)
        calls = [served.popen(name, "prepare", kind.xml(name)) for name in names]
        results = dict(zip(names, map(finish, calls), strict=True))
        served.sim.heal()
        started = {name for name, (status, _) in results.items() if status == 0}
        assert len(started) == kind.room, (window, results)
        (refusal,) = [error for status, error in results.values() if status]
        assert "no free instance of profile" in refusal or "could be made" in refusal, window
        assert kind.present() == kind.vgpus(*started), window
        assert set(served.rows()) == {(name, "0", "assigned") for name in started}, window
        calls = [served.popen(name, "stopped", kind.xml(name)) for name in names]
        assert [finish(call) for call in calls] == [(0, "")] * len(names), window
        assert (kind.present(), served.rows()) == ({}, []), window


@pytest.mark.simhost("l40s")
def test_i8_two_definitions_that_name_one_vf_start_at_once(served: Product) -> None:
    kind = VfKind(served.sim)
    vf = kind.device("a")
    both = {n: domain_xml(n, {"0": kind.profile}, hostdevs=[kind.hostdev(vf)]) for n in "ab"}
    for window in ("", "slow:0.5"):
        if window:
            kind.fail_create(window, times=1)
        calls = {name: served.popen(name, "prepare", xml) for name, xml in both.items()}
        results = {name: finish(call) for name, call in calls.items()}
        ((winner, _),) = [(n, r) for n, r in results.items() if r == (0, "")]
        ((status, said),) = [r for n, r in results.items() if n != winner]
        assert status == 1
        assert f"{vf} is in use by domain {winner!r}; another VF is free" in said
        assert served.rows() == [(winner, "0", "assigned")]
        for name, xml in both.items():
            assert finish(served.popen(name, "stopped", xml)) == (0, "")
            left = [] if name == winner or winner == "a" else [(winner, "0", "assigned")]
            assert served.rows() == left  # the other's stop does not touch it
    assert kind.present() == {}


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
