"""The hook's protocol: what is framed comes back, and nothing else gets through."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu_hook import protocol


@given(st.lists(st.binary(max_size=200), max_size=8))
def test_parts_come_back(parts: list[bytes]) -> None:
    data = protocol.frame(*parts)
    assert protocol.parts(data) == parts
    assert protocol.length(data) == len(data)


@given(st.binary(max_size=60))
def test_anything_else_is_refused_or_is_a_frame(data: bytes) -> None:
    try:
        parts = protocol.parts(data)
    except protocol.ProtocolError:
        return
    assert protocol.parts(protocol.frame(*parts)) == parts


@pytest.mark.parametrize("head", [b"", b"12", b"999999999"])
def test_a_length_that_is_not_complete_needs_more(head: bytes) -> None:
    assert protocol.length(head) is None


@pytest.mark.parametrize("head", [b"x", b"9999999999", b"99999999:", b"-1:"])
def test_a_length_that_can_not_be_is_refused(head: bytes) -> None:
    with pytest.raises(protocol.ProtocolError):
        protocol.length(head)
