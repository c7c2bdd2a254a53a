"""vgpu-hookd's metrics, as node_exporter and Prometheus get them."""

from __future__ import annotations

import errno
import http.client
import os
import shlex
import socket
import stat
from collections.abc import Callable

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from tests.product import PATIENCE, Product
from vgpu_hook.config import Settings
from vgpu_hook.publishing import _cause

from .simulation import Simulation
from .test_daemon import settled

Labels = frozenset[tuple[str, str]]
Values = dict[tuple[str, Labels], float]


def values_of(text: str) -> Values:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parse(text)
        for sample in family.samples
    }


def value(values: Values, name: str, /, **labels: str) -> float | None:
    return values.get((f"vgpu_hook_{name}", frozenset(labels.items())))


def configured(simulation: Simulation, metrics: str = "") -> Product:
    """The daemon looks each second, and there is a node_exporter."""
    product = simulation.product
    product.textfile.parent.mkdir(exist_ok=True)
    daemon = f"[daemon]\nlibvirt = '{simulation.server.uri}'\nreconcile = 1\n"
    product.configure(extra=daemon, metrics=f"interval = 1\n{metrics}")
    return product


def wait_for(product: Product, what: str, condition: Callable[[Values], bool]) -> Values:
    """Wait until the textfile says so."""
    found: Values = {}

    def holds() -> bool:
        if not product.textfile.exists():
            return False
        found.clear()
        found.update(values_of(product.textfile.read_text()))
        return condition(found)

    product.wait_for(what, holds)
    return found


def test_the_textfile_tells_of_a_vgpu_from_its_start_to_its_release(simulation: Simulation) -> None:
    product = configured(simulation)
    simulation.start_daemon()
    free = {"gpu": "mtty", "profile": "mtty-1", "name": "Single port serial"}
    values = wait_for(product, "it is free", lambda v: value(v, "free_vgpus", **free) == 24)
    assert value(values, "vgpus", state="in_use") == 0
    domain = settled(simulation)
    simulation.qemu.start(domain)
    values = wait_for(product, "in use", lambda v: value(v, "vgpus", state="in_use") == 1)
    assert value(values, "free_vgpus", **free) == 23
    assert value(values, "libvirt_connected") == 1
    assert value(values, "store_usable") == 1
    assert value(values, "gpu_usable", gpu="mtty") == 1
    assert value(values, "calls_total", operation="prepare", outcome="done") == 1
    assert value(values, "call_duration_seconds_count", operation="prepare") == 1
    product.sim.fault("write", "sys/*/remove", "EBUSY")
    simulation.qemu.destroy(domain)
    wait_for(product, "retained", lambda v: value(v, "vgpus", state="retained") == 1)
    wait_for(product, "orphaned", lambda v: value(v, "orphaned_vgpus") == 1)
    product.sim.heal()
    values = wait_for(product, "released", lambda v: value(v, "vgpus", state="retained") == 0)
    runs = value(values, "reconcile_runs_total", outcome="done")
    assert runs is not None
    assert runs >= 1
    assert value(values, "reconcile_last_success_timestamp_seconds") is not None
    mode = stat.S_IMODE(product.textfile.stat().st_mode)
    assert mode == 0o644
    assert os.listdir(product.textfile.parent) == [product.textfile.name]


def test_a_lost_libvirt_and_a_broken_store_are_told(simulation: Simulation) -> None:
    product = configured(simulation)
    simulation.start_daemon()
    wait_for(product, "connected", lambda v: value(v, "libvirt_connected") == 1)
    simulation.libvirt.refuses = True
    simulation.server.disconnect()
    wait_for(product, "disconnected", lambda v: value(v, "libvirt_connected") == 0)
    for file in product.state.glob("store.db*"):
        file.unlink()
    (product.state / "store.db").write_bytes(b"no store" * 1000)
    (product.state / "store.db").chmod(0o600)
    wait_for(product, "store", lambda v: value(v, "store_usable") == 0)


def test_without_the_folder_nothing_is_written_and_it_goes_when_the_daemon_does(
    simulation: Simulation,
) -> None:
    product = configured(simulation)
    product.textfile.parent.rmdir()
    process = product.daemon()
    try:
        assert not product.textfile.parent.exists()
        product.textfile.parent.mkdir()
        wait_for(product, "it is written", lambda v: bool(v))
        process.terminate()
        assert process.wait(PATIENCE) == 0
        assert os.listdir(product.textfile.parent) == []
    finally:
        process.kill()
        process.wait()


def test_a_textfile_of_the_old_name_is_removed_and_a_broken_file_removes_none(
    simulation: Simulation,
) -> None:
    product = configured(simulation)
    simulation.start_daemon()
    wait_for(product, "it is written", bool)
    old, text = product.textfile, product.config.read_text()
    product.set_config("[nonsense]\n")
    old.unlink()
    wait_for(product, "it is written all the same", bool)
    product.textfile = old.with_name("other.prom")
    product.set_config(text.replace(str(old), str(product.textfile)))
    wait_for(product, "it is written there", bool)
    assert os.listdir(old.parent) == [product.textfile.name]
    product.set_config(text.replace(str(old), ""))
    product.wait_for("none is left", lambda: os.listdir(old.parent) == [])


READ_ONLY = "mount -t tmpfs -o ro none {folder} && exec {command}"


def test_a_folder_that_is_read_only_is_told_with_what_helps(simulation: Simulation) -> None:
    """As in the daemon's unit, if the folder was made after its start: EROFS, of a real mount."""
    product = configured(simulation)
    folder = product.textfile.parent
    python = product.python
    received = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    received.bind(str(product.state.parent / "no-journal"))
    received.settimeout(PATIENCE)
    words = " ".join(map(shlex.quote, [*python, "vgpu_hook.daemon"]))
    script = READ_ONLY.format(folder=shlex.quote(str(folder)), command=words)
    product.python = ["unshare", "--mount", "sh", "-c", script]  # and a word more: its $0
    process = product.daemon()
    try:
        event = b""
        while b"metrics: " not in event:
            event = received.recv(1 << 16)
    finally:
        process.terminate()
        process.wait(PATIENCE)
        received.close()
    told = next(line for line in event.decode().splitlines() if line.startswith("MESSAGE="))
    assert told == (
        f"MESSAGE=metrics: {product.textfile}.new: Read-only file system; run: systemctl edit"
        f" vgpu-hookd (ReadWritePaths={folder}), then: systemctl restart vgpu-hookd"
    )
    default = Settings().metrics_textfile
    assert _cause(OSError(errno.EROFS, "Read-only file system"), default) == (
        f"{default}: Read-only file system; if the folder is newer than vgpu-hookd, run: systemctl"
        " restart vgpu-hookd"
    )


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def get(port: int, path: str) -> tuple[int, str, str]:
    peer = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    peer.request("GET", path)
    answer = peer.getresponse()
    found = (answer.status, answer.headers["Content-Type"], answer.read().decode())
    peer.close()
    return found


def test_http_serves_the_same_whatever_other_peers_do(simulation: Simulation, port: int) -> None:
    configured(simulation, f"listen = '127.0.0.1:{port}'\n")
    simulation.start_daemon()
    with socket.create_connection(("127.0.0.1", port)) as slow:
        slow.sendall(b"GET /metr")
        status, kind, text = get(port, "/metrics")
        assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
        assert value(values_of(text), "libvirt_connected") == 1
        assert get(port, "/")[0] == 404
        others = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
        domain = settled(simulation)
        simulation.qemu.start(domain)
        assert simulation.product.rows() == [("a", "0", "assigned")]
        for peer in others:
            peer.close()
    simulation.product.wait_for("it serves again", lambda: _serves(port))


def _serves(port: int) -> bool:
    try:
        return get(port, "/metrics")[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def test_a_port_that_is_taken_costs_the_metrics_and_nothing_else(
    simulation: Simulation, port: int
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        product = configured(simulation, f"listen = '127.0.0.1:{port}'\n")
        simulation.start_daemon()
        simulation.qemu.start(settled(simulation))
        assert product.rows() == [("a", "0", "assigned")]
        wait_for(product, "the file", lambda v: value(v, "vgpus", state="in_use") == 1)
