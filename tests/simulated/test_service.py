"""vgpu-hookd under systemd: what it tells it (sd_notify(3)), over a socket like systemd's."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.product import PATIENCE, Product
from tests.simulated.daemons import NO_LIBVIRT

WATCHDOG_USEC = "200000"
SILENCE = 3.0
"""Seconds: many times what passes between two signs of life."""

SETUP = """
import os, runpy, socket, sys, time
import libvirt

hang = sys.argv.pop()

def wait(name):
    while os.path.exists(f"{hang}/{name}"):
        time.sleep(0.05)

class Socket(socket.socket):
    def accept(self):
        wait("accept")
        return super().accept()

socket.socket = Socket
once = libvirt.virEventRunDefaultImpl

def run():
    wait("loop")
    return once()

libvirt.virEventRunDefaultImpl = run
runpy.run_module("vgpu_hook.daemon", run_name="__main__")
"""
"""vgpu-hookd, of which a part hangs while there is a file of the part's name in a folder."""


class Service:
    """vgpu-hookd as a service: what it says to systemd is in `said`."""

    def __init__(self, product: Product, folder: Path) -> None:
        self.product = product
        self.hang = folder / "hang"
        self.hang.mkdir()
        self.said: list[dict[str, str]] = []
        self._notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._notify.bind(str(folder / "notify"))
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-c", SETUP, str(self.hang)],
            env={
                **os.environ,
                **product.environment,
                "NOTIFY_SOCKET": str(folder / "notify"),
                "WATCHDOG_USEC": WATCHDOG_USEC,
            },
        )

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self._notify.close()

    def hear(self, seconds: float = PATIENCE) -> dict[str, str]:
        """Return the next thing that it says; nothing if it says nothing for so long."""
        self._notify.settimeout(seconds)
        try:
            text = self._notify.recv(1 << 16).decode()
        except TimeoutError:
            return {}
        self.said.append(dict(line.split("=", 1) for line in text.splitlines()))
        return self.said[-1]

    def hear_until(self, condition: Callable[[dict[str, str]], bool]) -> dict[str, str]:
        """Return what it says, as soon as that is what is waited for."""
        while heard := self.hear():
            if condition(heard):
                return heard
        raise AssertionError(f"not heard; it said {self.said[-3:]}")

    def falls_silent(self) -> bool:
        """Tell whether it says nothing for a while, or has said the last of what it said before."""
        return not self.hear(SILENCE)


@pytest.fixture
def service(product: Product, tmp_path: Path) -> Iterator[Service]:
    product.configure(extra=NO_LIBVIRT)
    with ExitStack() as stack:
        started = stack.enter_context(Service(product, tmp_path))
        assert started.hear() == {"READY": "1"}
        yield started


def lives(heard: dict[str, str]) -> bool:
    return heard == {"WATCHDOG": "1"}


def connect(product: Product, stack: ExitStack) -> None:
    peer = stack.enter_context(socket.socket(socket.AF_UNIX))
    peer.connect(str(product.runtime / "hook.sock"))


@pytest.mark.parametrize("part", ["accept", "loop"])
def test_no_sign_of_life_while_a_part_hangs(service: Service, product: Product, part: str) -> None:
    service.hear_until(lives)
    (service.hang / part).touch()
    with ExitStack() as stack:
        if part == "accept":
            connect(product, stack)  # it hangs at the first call
        product.wait_for("no more signs of life", service.falls_silent)
        assert service.process.poll() is None
        (service.hang / part).unlink()
        service.hear_until(lives)


def test_signs_of_life_while_nothing_happens(service: Service, product: Product) -> None:
    """Neither a call nor an event, and no libvirt: for longer than a part may stand still."""
    silences = 0
    for _ in range(80):  # each 0.1 s: 8 s in all
        heard = service.hear(SILENCE)
        silences += not heard
        assert heard in ({}, {"WATCHDOG": "1"})
    assert not silences
    assert service.process.poll() is None


def test_a_reload_says_what_is_wrong_and_a_second_one_that_it_is_right_again(
    service: Service, product: Product
) -> None:
    right = product.config.read_text()
    product.set_config(right.replace("[deadlines]", "[deadlines]\nfoot = 1"))
    service.process.send_signal(signal.SIGHUP)
    begun = service.hear_until(lambda heard: "RELOADING" in heard)
    assert begun["RELOADING"] == "1"
    assert int(begun["MONOTONIC_USEC"]) > 0  # what Type=notify-reload of systemd 253 asks for
    ended = service.hear_until(lambda heard: "READY" in heard)
    assert ended["STATUS"].startswith(f"configuration {product.config}: deadlines.foot: ")
    product.set_config(right)
    service.process.send_signal(signal.SIGHUP)
    assert service.hear_until(lambda heard: "READY" in heard) == {"READY": "1", "STATUS": ""}
    service.hear_until(lives)


def test_a_daemon_goes_on_without_whom_it_tells(service: Service, tmp_path: Path) -> None:
    service.hear_until(lives)
    (tmp_path / "notify").unlink()
    service.process.send_signal(signal.SIGHUP)
    while service.hear(SILENCE):
        pass
    assert service.process.poll() is None
    service.process.terminate()
    assert service.process.wait(PATIENCE) == 0
