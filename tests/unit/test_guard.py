"""The guard: each single thing that speaks against a release keeps the device (R6, I2)."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vgpu_hook import guard
from vgpu_hook.model import MDEV, Assignment, Found, VgpuRequest, new_assignment
from vgpu_hook.sysfs import Roots

DEVICE = "c8b0a1d2-0000-4000-8000-000000000001"
FOUND = Found(MDEV, DEVICE, "0000:01:00.0", "nvidia-63", ("/dev/vfio/12",))


def record(name: str = "a", boot_id: str = "boot", generation: int = 1) -> Assignment:
    request = VgpuRequest(slot="0", profile="nvidia-63")
    row = new_assignment(name, name, request, FOUND, FOUND.type, boot_id, DEVICE)
    return row._replace(generation=generation)


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    """A /proc with one process, which has another device open."""
    handles = tmp_path / "proc" / "42" / "fd"
    handles.mkdir(parents=True)
    (tmp_path / "proc" / "42" / "comm").write_text("qemu\n")
    os.symlink("/dev/vfio/13", handles / "7")
    return Roots(sysfs=str(tmp_path / "sys"), proc=str(tmp_path / "proc"), dev="/dev")


def judge(roots: Roots, row: Assignment, found: Found | None, *others: Assignment) -> guard.Verdict:
    framework: Any = SimpleNamespace(fixed=False, find=lambda device, parent: found)
    return guard.judge(row, others, "boot", framework, roots)


def test_r6_a_device_of_which_everything_is_proved_may_be_destroyed(roots: Roots) -> None:
    verdict = judge(roots, record(), FOUND)
    assert (verdict.action, verdict.reason) == (guard.DESTROY, "")
    assert len(verdict.facts) == 5


def test_r6_another_record_of_the_device_keeps_it(roots: Roots) -> None:
    verdict = judge(roots, record(), FOUND, record("b", generation=2))
    assert verdict.action == guard.KEEP
    assert verdict.reason == "another record names it too: 'b' slot 0 (creating)"


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (FOUND._replace(type="nvidia-64"), "it is nvidia-64 on 0000:01:00.0, not nvidia-63 on"),
        (FOUND._replace(type=""), "it is of no known type on 0000:01:00.0"),
        (FOUND._replace(parent="0000:02:00.0"), "it is nvidia-63 on 0000:02:00.0, not"),
        (FOUND._replace(removing=True), "the kernel has begun to remove it"),
        (FOUND._replace(handles=()), "who uses it can't be told"),
        (FOUND._replace(handles=("/dev/vfio/13",)), "in use by qemu (pid 42, /dev/vfio/13)"),
    ],
)
def test_r6_i2_one_thing_against_it_is_enough(roots: Roots, found: Found, reason: str) -> None:
    verdict = judge(roots, record(), found)
    assert verdict.action == guard.KEEP
    assert reason in verdict.reason
    assert sum(not fact.good for fact in verdict.facts) == 1


def test_r6_i9_a_record_of_another_boot_keeps_it(roots: Roots) -> None:
    verdict = judge(roots, record(boot_id="before"), FOUND)
    assert verdict.action == guard.KEEP
    assert "of another boot" in verdict.reason


def test_r6_what_is_gone_needs_no_release(roots: Roots) -> None:
    assert judge(roots, record(), None, record("b")).action == guard.GONE
