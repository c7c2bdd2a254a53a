"""The store's disk is full, read-only or broken (I3, I4, R3, R14), at each of the store's calls."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.crash.conftest import ALL, FIGURE, only_mdev, step
from tests.crash.faults import CAUSES, ERRORS, StoreFaults, alone, served
from tests.crash.scenarios import NAME, SCENARIOS
from tests.crash.world import World
from tests.domains import domain_xml
from tests.product import Product
from vgpu_hook import store_file
from vgpu_hook.model import StoreError

Figure = Callable[[str, object], None]


def told(world: World, faults: StoreFaults, name: str, who: str) -> str:
    return (
        f"disk faults: {name} [{world.kind.name}], {who}: {faults.tried} tried, of which"
        f" {faults.refused} refused the start; nothing leaked"
    )


def test_i4_r3_a_daemon_whose_disk_fails(
    world: World, tmp_path: Path, record_property: Figure
) -> None:
    """Start on one framework, stop on the other; all of both: tests/soak/test_crash.py."""
    name = "start" if world.kind.name == "mdev" else "stopped"
    faults = StoreFaults(world, SCENARIOS[name], tmp_path / "faults")
    with served(world, faults.shim) as call:
        faults.each(call, [*ERRORS], ["from there on"], step=step(3))
    who = "the daemon's" if ALL else "the daemon's, each third call"
    record_property(FIGURE, told(world, faults, name, who))


@only_mdev
@pytest.mark.parametrize("name", ["start", "stopped"])
def test_i4_r3_a_hook_whose_disk_fails(
    world: World, tmp_path: Path, name: str, record_property: Figure
) -> None:
    """All points, with both extents and all errors: tests/soak/test_crash.py."""
    faults = StoreFaults(world, SCENARIOS[name], tmp_path / "faults")
    with alone(world, faults.shim) as call:
        faults.each(call, [errno.ENOSPC], ["from there on"], step=6)
    record_property(FIGURE, told(world, faults, name, "the hook's own, each sixth call"))


# -- real ones --------------------------------------------------------------------------


@contextmanager
def mounted(*arguments: str | Path) -> Iterator[None]:
    """Mount something for the block; the last argument is where."""
    subprocess.run(["mount", *arguments], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", arguments[-1]], check=True)


def fill_up(path: Path) -> None:
    """Write to the file until its disk is full."""
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(os.sysconf("SC_PAGE_SIZE")))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


def is_refused_for_the_disk(product: Product, xml: bytes) -> None:
    answer = product.hook(NAME, "prepare", xml)
    assert (answer.status, answer.out) == (1, "")
    assert str(product.state) in answer.err
    assert any(cause in answer.err for cause in CAUSES)
    assert "set-aside" not in answer.err
    for operation in ("stopped", "release"):
        assert product.hook(NAME, operation, xml) == (0, "", "")
    for operation in ("prepare", "stopped", "release"):
        assert product.hook("plain", operation, domain_xml("plain")) == (0, "", "")


@pytest.mark.parametrize("empty", [True, False], ids=["no store yet", "a store"])
def test_i4_r14_a_file_system_that_is_full(world: World, *, empty: bool) -> None:
    product = world.product
    product.state.mkdir(mode=0o700)
    with mounted("-t", "tmpfs", "-o", "size=512k,mode=700", "tmpfs", product.state):
        xml = world.kind.xml(NAME)
        if not empty:
            assert product.hook("b", "prepare", world.kind.xml("b")) == (0, "", "")
        before = product.rows(), world.kind.present()
        filler = product.state / "filler"
        fill_up(filler)
        is_refused_for_the_disk(product, xml)
        filler.unlink()
        assert (product.rows(), world.kind.present()) == before
        assert product.hook(NAME, "prepare", xml) == (0, "", "")
        assert product.hook(NAME, "stopped", xml) == (0, "", "")
        assert (product.rows(), world.kind.present()) == before


def opened_and_closed(state: Path) -> None:
    store = store_file.open_store(str(state), "test", wait=5)
    assert store is not None
    store.close()


def test_a_new_store_is_there_whole_or_not_at_all_however_little_room_there_is(
    tmp_path: Path,
) -> None:
    """SQLite's own end of a connection can't say that its log did not fit into the file."""
    refused = []
    for size in range(24, 300, 12):  # KiB; less is no room for anything, more is enough
        state = tmp_path / f"{size}"
        state.mkdir()
        with mounted("-t", "tmpfs", "-o", f"size={size}k,mode=700", "tmpfs", state):
            try:
                opened_and_closed(state)
            except StoreError as error:
                refused.append(str(error))
            names = {path.name for path in state.iterdir()}
            assert names <= {"store.db", "store.db-wal", "store.db-shm"}
            subprocess.run(["mount", "-o", "remount,size=4m", state], check=True)
            opened_and_closed(state)
            assert store_file.check(str(state)) == []
    assert refused
    assert all("is the disk of" in text for text in refused)


def test_i4_r14_a_file_system_that_is_read_only(world: World) -> None:
    product = world.product
    xml, b = world.kind.xml(NAME), world.kind.xml("b")
    assert product.hook("b", "prepare", b) == (0, "", "")
    before = product.rows(), world.kind.present()
    with mounted("--bind", product.state, product.state):
        subprocess.run(["mount", "-o", "remount,ro,bind", product.state], check=True)
        is_refused_for_the_disk(product, xml)
        assert product.hook("b", "stopped", b) == (0, "", "")
        assert world.kind.present() == before[1]  # what can't be recorded is not released (R2)
    assert product.rows() == before[0]
    assert product.hook("b", "release", b) == (0, "", "")
    assert (product.rows(), world.kind.present()) == ([], {})
