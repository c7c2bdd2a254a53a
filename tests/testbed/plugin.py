"""pytest's fixtures for the test host. Load with `-p tests.testbed.plugin` or pytest_plugins.

    testbed     one machine for the whole run, the working tree's package installed in it
    host        that machine, clean at the start of each module
    fresh_host  that machine, clean at the start of each test
    pair        two other machines with a network and a store of disk images between them
                (pair.py), clean at the start of each module; minutes, at the first use
    bare        a machine of its own for each suite of Debian, without vgpu-hook's package, and
                with AppArmor enforcing libvirtd's profile; minutes, at the first use

A missing image is built (minutes, once); nothing is ever skipped for want of it.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import pytest

from tests.testbed.build import ensure_image
from tests.testbed.host import INSTALLED, Host, confined, prepare
from tests.testbed.machine import Machine
from tests.testbed.pair import Pair, running_pair
from tests.testbed.recipe import SUITES, TRIXIE, Image, Suite


class Testbed:
    """The run's machine, and whether a test has had it since it was last clean."""

    __test__ = False

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._used = False

    def clean_host(self) -> Host:
        """Return the host as it was right after the installation."""
        if self._used:
            self.machine.restore(INSTALLED)
        self._used = True
        return Host(self.machine)


class PairTestbed:
    """The run's pair of machines, and whether a test has had it since it was last clean."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self._used = False

    def clean_pair(self) -> Pair:
        """Return the pair as it was right after the installation."""
        if self._used:
            self._pair.clean()
        self._used = True
        return self._pair


@contextmanager
def _shown(config: pytest.Config) -> Iterator[None]:
    """Show what the body prints: the first use takes long enough to look like a hang."""
    capture = config.pluginmanager.get_plugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture else nullcontext():
        yield


def _image_for(config: pytest.Config, doing: str, suite: Suite = TRIXIE) -> Image:
    """Return the image, built if need be, and say what comes next."""
    with _shown(config):
        image = ensure_image(suite)
        print(f"\ntestbed: {doing}", file=sys.stderr)
    return image


Show = Callable[[str], None]


@pytest.fixture
def show(pytestconfig: pytest.Config) -> Show:
    """A function that shows a figure among the results, whatever the capturing."""

    def line(text: str) -> None:
        with _shown(pytestconfig):
            print(f"\n  {text}", file=sys.stderr)

    return line


@pytest.fixture(scope="session")
def testbed(pytestconfig: pytest.Config) -> Iterator[Testbed]:
    """A running test host with the working tree's package installed."""
    image = _image_for(pytestconfig, "starting the test host, installing the package")
    with Machine(image) as machine:
        prepare(machine)
        yield Testbed(machine)


@pytest.fixture(scope="module")
def host(testbed: Testbed) -> Host:
    """The test host, clean at the start of the module."""
    return testbed.clean_host()


@pytest.fixture
def fresh_host(testbed: Testbed) -> Host:
    """The test host, clean at the start of the test."""
    return testbed.clean_host()


@pytest.fixture(scope="session")
def pair_testbed(pytestconfig: pytest.Config) -> Iterator[PairTestbed]:
    """Two running test hosts with the working tree's package installed in both."""
    image = _image_for(pytestconfig, "starting two test hosts, installing the package")
    with running_pair(image) as pair:
        yield PairTestbed(pair)


@pytest.fixture(scope="module")
def pair(pair_testbed: PairTestbed) -> Pair:
    """The pair of test hosts, clean at the start of the module."""
    return pair_testbed.clean_pair()


@pytest.fixture(scope="module", params=list(SUITES))
def bare(request: pytest.FixtureRequest, pytestconfig: pytest.Config) -> Iterator[Host]:
    """A test host of each suite as it comes, AppArmor and all; the module has it for itself."""
    suite = SUITES[request.param]
    image = _image_for(pytestconfig, f"starting a bare test host of {suite.debian}", suite)
    with confined(image) as machine:
        machine.wait_settled()
        yield Host(machine)
