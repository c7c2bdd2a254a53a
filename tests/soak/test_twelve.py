"""Long runs on the test host: `make soak`, not in `make test`."""

from __future__ import annotations

from tests.testbed.plugin import Show, Testbed
from tests.testhost.kinds import VfKind
from tests.testhost.twelve import run_twelve


def test_twelve_domains_share_eight_vfs_for_ten_minutes(testbed: Testbed, show: Show) -> None:
    show(run_twelve(VfKind(testbed.clean_host()), seconds=600))
