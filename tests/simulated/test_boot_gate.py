"""The boot gate: what must work whatever state vgpu-hook is in."""

from __future__ import annotations

from pathlib import Path

from tests.product import Product
from tests.reports.calls import script


def test_a_broken_store_keeps_none_of_the_hosts_commands_from_running(
    product: Product, tmp_path: Path
) -> None:
    """Without them there are no VFs, for VMs that never asked us for anything either."""
    product.state.mkdir(mode=0o700)
    (product.state / "store.db").write_bytes(b"this is not a database" * 100)
    tool, log = script(tmp_path, "sriov-manage", 0)
    product.configure(extra=f"[boot]\ncommands = [['{tool}', \"\\u0000\"], ['{tool}', '-e']]\n")
    answer = product.command("boot-gate")
    assert answer.status == 1
    assert f"done: {tool} -e\n" in answer.out
    assert "embedded null byte" in answer.out
    assert answer.err.startswith(f"error: store {product.state}/store.db")
    assert log.read_text() == "sriov-manage -e\n"
