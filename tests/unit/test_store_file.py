"""A store of an older version is taken along, whole, whoever opens it first."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest

from vgpu_hook import store_file
from vgpu_hook.model import StoreError


def first_version(folder: Path) -> Path:
    """Make a store as version 1 of the schema had it, with a row in each table that it had."""
    path = folder / "store.db"
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.executescript(store_file._STEPS[0])
    connection.execute("INSERT INTO domain (uuid, name) VALUES ('u', 'a')")
    connection.execute(
        "INSERT INTO request (domain_uuid, slot, device, profile, fork)"
        " VALUES ('u', '0', 'd', 'mtty-1', 'new')"
    )
    connection.execute(
        "INSERT INTO assignment VALUES"
        " (7, 'u', 'a', '0', 'mdev', 'd', 'mtty', 'mtty-1', 'mtty-1', 'assigned', 'b', '', 'now')"
    )
    connection.execute("PRAGMA user_version = 1")
    connection.close()
    return path


def test_a_store_of_the_first_version_is_taken_along(tmp_path: Path) -> None:
    first_version(tmp_path)
    store = store_file.open_store(str(tmp_path), "test", wait=5)
    assert store is not None
    (row,) = store.all()
    assert (row.generation, row.device, row.state) == (7, "d", "assigned")
    (request,) = store.domains.requests("u")
    assert (request.profile, request.placement) == ("mtty-1", None)
    assert store.devices.reservations() == []
    store.close()
    assert store_file.check(str(tmp_path)) == []


def test_many_may_be_first_to_open_an_old_store(tmp_path: Path) -> None:
    first_version(tmp_path)
    failures: list[Exception] = []

    def open_it() -> None:
        try:
            store = store_file.open_store(str(tmp_path), "test", wait=60)
            assert store is not None
            assert len(store.all()) == 1
            store.close()
        except Exception as error:  # noqa: BLE001 - a thread's failure is the test's
            failures.append(error)

    threads = [threading.Thread(target=open_it) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.parametrize("version", [0, 99])
def test_an_unknown_version_is_refused_and_left_as_it_is(tmp_path: Path, version: int) -> None:
    path = first_version(tmp_path)
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {version}")
    connection.close()
    with pytest.raises(StoreError):
        store_file.open_store(str(tmp_path), "test", wait=5)
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA user_version").fetchone() == (version,)
    connection.close()
