"""What tests/testhost does a few times, for long: `make soak`."""

from __future__ import annotations

from tests.testbed.plugin import Testbed
from tests.testhost.kinds import MdevKind
from tests.testhost.repeated import run_at_random, start_and_destroy


def test_start_and_destroy_20_times_leaves_nothing(testbed: Testbed) -> None:
    start_and_destroy(MdevKind(testbed.clean_host()), 20)


def test_200_events_in_random_order_and_ten_reconnects_end_in_agreement(testbed: Testbed) -> None:
    run_at_random(MdevKind(testbed.clean_host()), events=100, reconnects=10)
