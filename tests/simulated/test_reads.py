"""A pass over the host reads each of the kernel's files once: they cost, and tell one moment."""

from __future__ import annotations

import pytest

from tests.domains import domain_xml
from tests.product import Product

BOTH_LIST = {"sys/class/mdev_bus"}
"""The mdev parents; and, for the other framework, which GPUs are none of its business."""

HOSTS = {
    "l40s": "1148",
    "nvidia-two-t4": "nvidia-222",
    "mixed-mdev-vfio": "mtty-1",
    "mtty": "mtty-1",
}


@pytest.mark.parametrize(
    ("host", "profile"),
    [pytest.param(h, p, marks=pytest.mark.simhost(h), id=h) for h, p in HOSTS.items()],
)
@pytest.mark.parametrize("words", ["profiles", "status", "reconcile", "render"])
def test_each_file_is_read_once(product: Product, host: str, profile: str, words: str) -> None:
    file = product.state.parent / "a.xml"
    file.write_bytes(domain_xml("a", {"0": profile}, hostdevs=[]))
    product.sim.reset_reads()
    answer = product.command(words, *([str(file)] if words == "render" else []))
    assert answer.status == 0, answer
    reads = {path: counts for path, counts in product.sim.reads().items() if path[:4] == "sys/"}
    assert len(reads) > 5
    assert [path for path, counts in reads.items() if counts.get("open", 0) > 1] == []
    listed = {path for path, counts in reads.items() if counts.get("readdir", 0) > 1}
    assert listed <= BOTH_LIST
