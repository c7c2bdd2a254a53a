"""Names and numbers as drivers, libvirt and people write them."""

from __future__ import annotations

import pytest

from vgpu_hook.frameworks.vendor_vfio import framebuffer
from vgpu_hook.model import plain_name
from vgpu_hook.ranges import numbers


@pytest.mark.parametrize(
    ("name", "mib"),
    [
        ("NVIDIA L40S-2Q", 2048),
        ("NVIDIA L40S-48Q", 49152),
        ("NVIDIA H200X-1-18C", 18432),
        ("NVIDIA A100-1-5CME", 5120),
        ("GRID M60-0B", 512),
        ("mtty-1", 0),
        ("", 0),
    ],
)
def test_the_framebuffer_is_in_the_name(name: str, mib: int) -> None:
    assert framebuffer(name) == mib


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("0000:41:00.0", "0000:41:00.0"),
        ("00000000:41:00.0", "0000:41:00.0"),
        ("41:00.0", "0000:41:00.0"),
        ("0001:C1:00.5", "0001:c1:00.5"),
        ("10000:e1:00.0", "10000:e1:00.0"),
        ("mtty", "mtty"),
        (" MTTY ", "mtty"),
        ("a:b:c:d.e", "a:b:c:d.e"),
    ],
)
def test_a_gpu_has_one_name(text: str, plain: str) -> None:
    assert plain_name(text) == plain


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("0-3,8", {0, 1, 2, 3, 8}),
        ("0-3,^2", {0, 1, 3}),
        ("5", {5}),
        ("", set()),
        ("all", set()),
        ("3-1", set()),
        ("0-99999999", set()),
    ],
)
def test_lists_of_numbers(text: str, found: set[int]) -> None:
    assert numbers(text) == found
