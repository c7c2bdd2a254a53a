"""Definitions put in order: what each kind of origin needs, and that order stays order."""

from __future__ import annotations

import pytest

from tests.domains import device_of, domain_xml, hostdev, uuid_of
from vgpu_hook import definitions, domain
from vgpu_hook.model import VgpuRequest
from vgpu_hook.planning import Planner

OWN = device_of(uuid_of("a"))
OTHER = device_of(uuid_of("other"))


# A host without any GPU: what is asked for gets the derived mdev, as planning says.
PLAN = Planner((), None, "spread", lambda subject: frozenset())


def settle(text: bytes, keep: tuple[VgpuRequest, ...] | None = None) -> definitions.Settled:
    settled = definitions.settle(text, PLAN, keep)
    again = definitions.settle(settled.text, PLAN, keep)
    assert again.text == settled.text
    assert again.changes == ()
    return settled


def devices(settled: definitions.Settled) -> list[str]:
    return [h.address for h in domain.parse(settled.text).hostdevs]


def test_what_is_right_is_returned_byte_for_byte() -> None:
    for text in (domain_xml("a", {"0": "p"}), domain_xml("a"), domain_xml("a", {"x": "p"})):
        assert settle(text).text == text


def test_a_request_without_a_hostdev_gets_one() -> None:
    settled = settle(domain_xml("a", {"0": "p"}, hostdevs=[]))
    assert devices(settled) == [OWN]
    assert settled.requests == (VgpuRequest("0", "p"),)


def test_a_hostdev_without_a_request_goes_if_it_is_ours() -> None:
    assert devices(settle(domain_xml("a", hostdevs=[hostdev(OWN)]))) == []
    assert devices(settle(domain_xml("a", hostdevs=[hostdev(OTHER)]))) == [OTHER]
    assert devices(settle(domain_xml("a", hostdevs=[hostdev(OWN, None)]))) == [OWN]


@pytest.mark.parametrize(
    ("policy", "expected"), [("new", [OWN]), ("none", []), ("refuse", [OTHER])]
)
def test_r8_an_inherited_hostdev_is_replaced_by_policy(policy: str, expected: list[str]) -> None:
    attributes = f"fork='{policy}'"
    text = domain_xml("a", {"0": "p"}, hostdevs=[hostdev(OTHER)], attributes=attributes)
    settled = settle(text)
    assert devices(settled) == expected
    assert len(settled.requests) == (0 if policy == "none" else 1)


def test_r9_what_stands_replaces_what_the_text_asks_for() -> None:
    text = domain_xml("a", {"0": "old", "gone": "x"})
    settled = settle(text, (VgpuRequest("0", "new"), VgpuRequest("1", "more")))
    assert [(r.slot, r.profile) for r in domain.parse(settled.text).request] == [
        ("0", "new"),
        ("1", "more"),
    ]
    assert devices(settled) == [OWN, device_of(uuid_of("a"), "1")]


def test_display_and_ramfb_follow_the_request() -> None:
    text = domain_xml("a", {"0": "p"}, attributes="display='on' ramfb='on'")
    settled = settle(text)
    assert b'display="on"' in settled.text
    assert b'ramfb="on"' in settled.text
