"""Ten live migrations there and as many back: `make soak`, not in `make test`, which does less."""

from __future__ import annotations

import pytest

from tests.testbed.pair import Pair
from tests.testbed.plugin import Show
from tests.testhost.kinds import KINDS
from tests.testhost.there_and_back import there_and_back


@pytest.mark.parametrize("name", list(KINDS))
def test_ten_times_there_and_back(pair: Pair, show: Show, name: str) -> None:
    show(there_and_back((KINDS[name](pair.first), KINDS[name](pair.second)), rounds=10))
