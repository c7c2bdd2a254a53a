"""Connections that stay: to the store that is there, never to one that was."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.domains import uuid_of
from vgpu_hook import store_file
from vgpu_hook.model import StoreError, VgpuRequest
from vgpu_hook.store import Store
from vgpu_hook.stores import Stores

REQUEST = (VgpuRequest("0", "mtty-1"),)


@pytest.fixture
def stores() -> Stores:
    return Stores()


def opened(stores: Stores, folder: Path, *, wait: float = 60, create: bool = True) -> Store:
    store = stores.open(str(folder), "test", wait=wait, create=create)
    assert store is not None
    return store


def note(stores: Stores, folder: Path, name: str) -> None:
    store = opened(stores, folder)
    store.domains.set_requests(uuid_of(name), name, REQUEST)
    store.close()


def names(folder: Path) -> set[str]:
    """What is there for somebody who comes anew."""
    store = store_file.open_store(str(folder), "test", wait=60, create=False)
    assert store is not None
    found = set(store.domains.names().values())
    store.close()
    return found


def test_there_is_none_and_it_is_not_made(stores: Stores, tmp_path: Path) -> None:
    assert stores.open(str(tmp_path), "test", wait=1, create=False) is None
    assert list(tmp_path.iterdir()) == []


def test_what_is_written_is_there_for_others_at_once(stores: Stores, tmp_path: Path) -> None:
    for name in ("a", "b"):
        note(stores, tmp_path, name)
        assert name in names(tmp_path)
    store_file.open_store(str(tmp_path), "test", wait=60)
    assert set(opened(stores, tmp_path).domains.names().values()) == {"a", "b"}


def test_a_store_that_was_set_aside_is_left_and_the_new_one_kept_whole(
    stores: Stores, tmp_path: Path
) -> None:
    note(stores, tmp_path, "a")
    aside = store_file.set_aside(str(tmp_path))
    assert aside is not None
    note(stores, tmp_path, "b")
    assert names(tmp_path) == {"b"}
    note(stores, tmp_path, "c")
    assert names(tmp_path) == {"b", "c"}
    assert store_file.check(str(tmp_path)) == []


def test_a_store_that_is_gone_is_made_anew_only_if_it_may_be(
    stores: Stores, tmp_path: Path
) -> None:
    note(stores, tmp_path, "a")
    for file in tmp_path.iterdir():
        file.unlink()
    assert stores.open(str(tmp_path), "test", wait=1, create=False) is None
    note(stores, tmp_path, "b")
    assert names(tmp_path) == {"b"}


def test_what_others_may_write_is_refused_also_later(stores: Stores, tmp_path: Path) -> None:
    note(stores, tmp_path, "a")
    tmp_path.chmod(0o777)
    with pytest.raises(StoreError):
        opened(stores, tmp_path)
    tmp_path.chmod(0o700)
    note(stores, tmp_path, "b")


def test_a_newer_store_is_refused_also_later(stores: Stores, tmp_path: Path) -> None:
    """The package was upgraded, and the daemon is still the old one."""
    note(stores, tmp_path, "a")
    store = store_file.open_store(str(tmp_path), "test", wait=60)
    assert store is not None
    store._database.execute(f"PRAGMA user_version = {store_file.SCHEMA_VERSION + 1}")
    store.close()
    with pytest.raises(StoreError, match="newer than this program"):
        opened(stores, tmp_path)


def test_two_that_write_take_turns(stores: Stores, tmp_path: Path) -> None:
    first, second = opened(stores, tmp_path), opened(stores, tmp_path, wait=0.1)
    inside, go_on = threading.Event(), threading.Event()

    def write() -> None:
        with first._database.transaction():
            inside.set()
            go_on.wait(60)

    thread = threading.Thread(target=write)
    thread.start()
    assert inside.wait(60)
    with pytest.raises(StoreError, match="is busy"), second._database.transaction():
        pass
    go_on.set()
    thread.join()
    with second._database.transaction():
        pass


def test_after_a_failure_a_connection_is_not_used_again(stores: Stores, tmp_path: Path) -> None:
    note(stores, tmp_path, "a")
    store = opened(stores, tmp_path)
    with pytest.raises(StoreError):
        store._database.execute("SELECT * FROM nothing")
    store.close()
    assert opened(stores, tmp_path)._database is not store._database


def test_tidied_the_log_is_empty_and_ended_it_is_gone(stores: Stores, tmp_path: Path) -> None:
    note(stores, tmp_path, "a")
    log = tmp_path / "store.db-wal"
    assert log.stat().st_size > 0
    stores.tidy()
    assert log.stat().st_size == 0
    note(stores, tmp_path, "b")
    assert log.stat().st_size > 0
    stores.end()
    assert not log.exists()
    assert names(tmp_path) == {"a", "b"}
