"""The product, killed or failed at each of its writing calls (rules I3, I4, I7).

shim.c is loaded into its processes and counts; shim.py gives the orders. callers.py makes the
calls, world.py says what must be true after them.
"""

import pytest

pytest.register_assert_rewrite(
    "tests.simulated.arrivals",
    *(f"{__name__}.{module}" for module in ("world", "scenarios", "daemons", "faults")),
)
