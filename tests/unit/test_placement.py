"""Which parent is chosen, and the reasons given when none will do."""

from __future__ import annotations

import pytest

from vgpu_hook import placement
from vgpu_hook.model import Parent, VgpuType


def parent(name: str, free: int, *, gpu: str = "", type_id: str = "nvidia-63") -> Parent:
    vgpu_type = VgpuType(type_id, "GRID T4-2Q", "", "vfio-pci", free, 0)
    return Parent("mdev", name, gpu or name, (vgpu_type,))


def chosen(parents: list[Parent], policy: str, pending: dict[str, int] | None = None) -> list[str]:
    found = placement.candidates(parents, "63", None)
    wishes = placement.Wishes(policy, waiting=pending or {})
    return [c.parent.name for c in placement.order(found, wishes)]


def test_spread_and_pack_order_by_what_the_gpu_has_free() -> None:
    parents = [parent("a", 3), parent("b", 5), parent("c", 0), parent("d", 1)]
    assert chosen(parents, "spread") == ["b", "a", "d"]
    assert chosen(parents, "pack") == ["d", "a", "b"]


def test_vfs_count_for_their_gpu() -> None:
    vfs = [parent(f"x{n}", 1, gpu="x") for n in range(2)] + [parent("y0", 1, gpu="y")]
    assert chosen(vfs, "spread")[0] == "x0"
    assert chosen(vfs, "pack")[0] == "y0"


def test_what_others_are_making_moves_a_parent_back_but_never_out() -> None:
    assert chosen([parent("a", 2), parent("b", 1)], "spread", {"a": 2}) == ["b", "a"]
    assert chosen([parent("a", 1)], "spread", {"a": 5}) == ["a"]


@pytest.mark.parametrize("profile", ["nvidia-63", "NVIDIA-63", "63", "GRID T4-2Q", "grid t4-2q "])
def test_a_profile_is_an_id_a_number_or_a_name_in_any_case(profile: str) -> None:
    found = placement.matching_type(profile, parent("a", 1))
    assert found is not None
    assert found.id == "nvidia-63"


def test_a_number_that_fits_several_types_is_refused() -> None:
    types = tuple(VgpuType(f"{d}-1", d, "", "vfio-pci", 1, 0) for d in ("mtty", "mdpy"))
    with pytest.raises(placement.UnknownProfile, match="several types of x: mtty-1, mdpy-1"):
        placement.matching_type("1", Parent("mdev", "x", "x", types))


def test_an_unreadable_parent_is_never_chosen_and_is_named() -> None:
    broken = parent("a", 9)._replace(problem="EIO")
    assert chosen([broken, parent("b", 1)], "spread") == ["b"]
    text = str(placement.why_not([broken], "nope", None))
    assert "unreadable: EIO" in text
