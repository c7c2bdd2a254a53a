"""A call that was frozen until its time was over: others may have gone on meanwhile (R12)."""

from __future__ import annotations

import pytest

from tests.domains import uuid_of
from tests.product import Product
from tests.simulated.kinds import Kind
from vgpu_hook import config, store_file
from vgpu_hook.bounded import Deadline
from vgpu_hook.host import Host
from vgpu_hook.lifecycle import Context, Lifecycle
from vgpu_hook.log import JournalLog
from vgpu_hook.model import DeadlineExceeded


def test_r12_a_call_that_was_frozen_does_nothing_when_it_goes_on(
    product: Product, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert product.hook("a", "prepare", kind.xml("a")).status == 0
    product.sim.reset_writes()
    monkeypatch.setenv("VGPU_HOOK_CONFIG", str(product.config))
    settings = config.load()
    store = store_file.open_store(settings.state, "late", wait=5)
    assert store is not None
    host = Host(settings, settings.roots.boot_id())
    log = JournalLog("/nonexistent", "late")
    frozen = Lifecycle(Context(settings, host, store, log, Deadline(0)))
    with pytest.raises(DeadlineExceeded, match="no time was left"):
        frozen.release_all(uuid_of("a"))
    store.close()
    assert product.sim.writes() == []
    assert kind.present() == kind.vgpus("a")
    assert product.rows() == [("a", "0", "assigned")]
