"""Ten live migrations there and as many back: `make soak`, not in `make test`, which does two."""

from __future__ import annotations

from tests.testbed.pair import Pair
from tests.testbed.plugin import Show
from tests.testhost.there_and_back import there_and_back


def test_ten_times_there_and_back(pair: Pair, show: Show) -> None:
    show(there_and_back((pair.first, pair.second), rounds=10))
