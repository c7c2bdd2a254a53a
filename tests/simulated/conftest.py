"""Fixtures of the tests on simulated hosts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.product import Product
from tests.simhost import SimHost
from tests.simulated.daemons import NO_LIBVIRT, Daemon, only_client
from tests.simulated.kinds import KINDS, Kind

pytest.register_assert_rewrite("tests.simulated.arrivals")


@pytest.fixture(
    params=[pytest.param(k, marks=pytest.mark.simhost(k.host), id=k.name) for k in KINDS]
)
def kind(request: pytest.FixtureRequest, simhost: SimHost) -> Kind:
    """Each framework in turn, on its simulated host: the one that `product` works on."""
    framework: type[Kind] = request.param
    return framework(simhost)


@pytest.fixture
def daemon(product: Product) -> Iterator[Daemon]:
    """vgpu-hookd, beside a hook that could do the calls itself."""
    product.configure(extra=NO_LIBVIRT)
    process = product.daemon()
    yield process
    process.kill()
    process.wait()


@pytest.fixture(params=["alone", "daemon"])
def served(request: pytest.FixtureRequest, product: Product, tmp_path: Path) -> Iterator[Product]:
    """The product whose hook does the calls itself, or can't, and has a daemon that does."""
    if request.param == "alone":
        yield product
        return
    product.configure(extra=NO_LIBVIRT)
    process = product.daemon()
    only_client(product, tmp_path)
    yield product
    process.kill()
    process.wait()
