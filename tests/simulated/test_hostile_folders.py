"""State and runtime folders where somebody else has put something: links, pipes, sockets, files.

Root follows no link of another user, believes no daemon that is not root's, and uses no folder in
which others could do that. R14 and R3 hold all the while.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.domains import device_of, domain_xml, hostdev, uuid_of
from tests.product import PATIENCE, Product
from tests.simulated.hostile import NOBODY, PYTHON, call, open_up
from vgpu_hook import protocol

A = domain_xml("a", {"0": "mtty-1"})
PLAIN = domain_xml("plain", hostdevs=[hostdev(device_of(uuid_of("x")), None)])


def mine(folder: Path) -> None:
    """Nothing is wrong with it."""


def of_another(folder: Path) -> None:
    os.chown(folder, NOBODY, NOBODY)


def open_to_all(folder: Path) -> None:
    folder.chmod(0o1777)


def open_to_a_group(folder: Path) -> None:
    folder.chmod(0o770)


def link_of_another(folder: Path) -> None:
    """A user's link, in a folder where everybody may put things, to a folder of root's."""
    target = folder.parent / "roots-own"
    folder.rename(target)
    folder.symlink_to(target)
    os.chown(folder, NOBODY, NOBODY, follow_symlinks=False)


WRONG: tuple[Callable[[Path], None], ...] = (
    of_another,
    open_to_all,
    open_to_a_group,
    link_of_another,
)


def refused(product: Product, *words: str) -> None:
    """Check that starts are refused with these words, and all else goes on without an effect."""
    answer = call(product, "a", "prepare", A)
    assert answer.status == 1
    for word in words:
        assert word in answer.err
    assert call(product, "a", "stopped", A) == (0, "", "")
    assert call(product, "a", "release", A) == (0, "", "")
    for operation in ("prepare", "stopped", "restore"):
        assert call(product, "plain", operation, PLAIN) == (0, "", "")
    assert product.sim.writes() == []


@pytest.mark.parametrize("spoil", WRONG, ids=lambda spoil: spoil.__name__)
@pytest.mark.parametrize("which", ["state", "runtime", "locks"])
def test_a_folder_that_others_can_write_to_is_not_used(
    product: Product, which: str, spoil: Callable[[Path], None]
) -> None:
    folder = product.runtime / "locks" if which == "locks" else getattr(product, which)
    folder.mkdir(parents=True, mode=0o700)
    spoil(folder)
    refused(product, str(folder), "another user" if "another" in spoil.__name__ else "may write")
    assert [path.name for path in folder.rglob("*") if path.name != "locks"] == []
    if which == "state":
        shown = product.command("status")
        assert shown.status == 1 or not list(folder.iterdir())
    if which == "runtime":
        daemon = subprocess.run(
            [sys.executable, "-I", "-m", "vgpu_hook.daemon"],
            env=product.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert daemon.returncode == 1
        assert daemon.stderr.startswith(f"error: {folder}") or str(folder) in daemon.stderr
        assert not (folder / "hook.sock").exists()


def test_a_link_of_roots_own_is_followed(product: Product, tmp_path: Path) -> None:
    """State on another disk: the administrator's doing."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    product.state.symlink_to(elsewhere)
    assert call(product, "a", "prepare", A) == (0, "", "")
    assert (elsewhere / "store.db").exists()
    assert call(product, "a", "stopped", A) == (0, "", "")


def test_a_store_whose_folder_is_opened_later_is_used_no_more(product: Product) -> None:
    assert call(product, "a", "prepare", A) == (0, "", "")
    product.state.chmod(0o777)
    answer = call(product, "a", "prepare", A)
    assert f"run: chmod 700 {product.state}" in answer.err
    assert call(product, "a", "stopped", A) == (0, "", "")
    assert product.rows() == [("a", "0", "assigned")]
    product.state.chmod(0o700)
    assert call(product, "a", "stopped", A) == (0, "", "")
    assert product.rows() == []


@pytest.mark.parametrize("what", ["text", "empty", "a database", "a store", "nothing", "a loop"])
def test_a_store_that_is_a_link_is_not_followed(
    product: Product, tmp_path: Path, what: str
) -> None:
    victim = tmp_path / "passwd"
    if what == "text":
        victim.write_text("root:x:0:0:root:/root:/bin/sh\n" * 200)
    elif what == "empty":
        victim.touch()
    elif what == "a store":
        call(product, "a", "prepare", A)
        call(product, "a", "stopped", A)
        product.sim.reset_writes()
        (product.state / "store.db").rename(victim)
    elif what == "a database":
        with contextlib.closing(sqlite3.connect(victim)) as connection:
            connection.executescript("CREATE TABLE x (y); PRAGMA user_version = 3;")
    elif what == "a loop":
        victim.symlink_to(product.state / "store.db")
    product.state.mkdir(mode=0o700, exist_ok=True)
    (product.state / "store.db").symlink_to(victim)
    before = victim.read_bytes() if victim.is_file() else None
    refused(product, str(product.state / "store.db"))
    assert (victim.read_bytes() if victim.is_file() else None) == before
    names = {path.name for path in tmp_path.iterdir()}
    assert names <= {"passwd", "state", "runtime", "vgpu-hook.toml"}
    assert [path.name for path in product.state.iterdir()] == ["store.db"]


def make_link(path: Path) -> None:
    path.symlink_to(path.parents[2] / "victim")


LOCKS: dict[str, Callable[[Path], None]] = {
    "a link": make_link,
    "a folder": Path.mkdir,
    "a socket": lambda path: os.mknod(path, 0o140600),
}


@pytest.mark.parametrize("make", LOCKS.values(), ids=LOCKS)
def test_a_lock_that_is_no_file_of_ours(
    product: Product, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    locks = product.runtime / "locks"
    product.runtime.mkdir(mode=0o700)
    locks.mkdir(mode=0o700)
    make(locks / uuid_of("a"))
    refused(product, f"lock {locks / uuid_of('a')}")
    assert not (tmp_path / "victim").exists()
    b = domain_xml("b", {"0": "mtty-1"})
    assert call(product, "b", "prepare", b) == (0, "", "")  # another domain is not held up
    assert call(product, "b", "stopped", b) == (0, "", "")


def test_a_lock_that_is_a_pipe_hangs_nobody(product: Product) -> None:
    locks = product.runtime / "locks"
    product.runtime.mkdir(mode=0o700)
    locks.mkdir(mode=0o700)
    os.mkfifo(locks / uuid_of("a"))
    answer = call(product, "a", "prepare", A)
    assert answer.status == 0 or "lock " in answer.err
    assert call(product, "a", "stopped", A) == (0, "", "")
    assert product.sim.devices() == []


def test_folders_are_made_for_root_alone_whatever_the_umask(product: Product) -> None:
    before = os.umask(0)
    try:
        assert call(product, "a", "prepare", A) == (0, "", "")
    finally:
        os.umask(before)
    made = [*product.state.rglob("*"), *product.runtime.rglob("*"), product.state, product.runtime]
    for path in made:
        assert path.stat().st_mode & 0o077 == 0, path


OWN_DAEMON = """
import os, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
os.chmod(sys.argv[1], 0o666)
listener.listen()
print("ready", flush=True)
while True:
    peer, _ = listener.accept()
    try:
        peer.sendall(sys.argv[2].encode())
        heard = b""
        while b"vgpus>" not in heard:
            chunk = peer.recv(1 << 16)
            if not chunk:
                break
            heard += chunk
        if heard:
            print("told", flush=True)
            peer.sendall(sys.argv[3].encode())
    except OSError:
        pass
    peer.close()
"""


@pytest.mark.parametrize("user", [0, NOBODY], ids=["root's", "another user's"])
def test_a_daemon_of_another_user_is_told_nothing_and_not_believed(
    product: Product, user: int
) -> None:
    """It says that all is well: the start would go on without a vGPU."""
    product.runtime.mkdir(mode=0o700)
    os.chown(product.runtime, user, user)
    open_up(product.runtime)
    socket_path, answer = product.runtime / "hook.sock", protocol.frame(b"0", b"", b"").decode()
    process = subprocess.Popen(
        [PYTHON, "-c", OWN_DAEMON, str(socket_path), protocol.greeting(0, 60).decode(), answer],
        stdout=subprocess.PIPE,
        user=user,
        cwd="/",
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    try:
        done = call(product, "a", "prepare", A)
        if user == 0:  # it can speak as ours does: what another user says is not just unheard
            assert done == (0, "", "")
            assert process.stdout.readline() == b"told\n"
        else:
            assert done.status == 1
            assert f"{product.runtime} is of another user" in done.err
    finally:
        process.kill()
        assert process.communicate(timeout=PATIENCE)[0] == b""
    assert product.sim.writes() == []


def test_i3_a_pipe_in_the_sockets_place_hangs_nobody(product: Product) -> None:
    product.runtime.mkdir(mode=0o700)
    os.mkfifo(product.runtime / "hook.sock")
    assert call(product, "a", "prepare", A) == (0, "", "")
    assert call(product, "a", "stopped", A) == (0, "", "")
    daemon = product.daemon()
    try:
        product.wait_for("its own", (product.runtime / "hook.sock").is_socket)
    finally:
        daemon.kill()
        daemon.wait()


def test_i3_a_backlog_that_is_full_hangs_nobody(product: Product) -> None:
    product.configure(deadline=10)
    product.runtime.mkdir(mode=0o700)
    with contextlib.ExitStack() as stack:
        deaf = stack.enter_context(socket.socket(socket.AF_UNIX))
        deaf.bind(str(product.runtime / "hook.sock"))
        deaf.listen(0)
        first = stack.enter_context(socket.socket(socket.AF_UNIX))
        first.connect(str(product.runtime / "hook.sock"))
        late = threading.Timer(PATIENCE, deaf.close)
        late.start()
        assert call(product, "a", "prepare", A) == (0, "", "")
        late.cancel()
    assert product.rows() == [("a", "0", "assigned")]
