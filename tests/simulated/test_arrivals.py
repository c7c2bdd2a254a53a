"""A VM wakes up here, from a saved image or another host: `restore` and `migrate` by the real hook.

What they print is what libvirt goes on with (facts A6), so each test that gets XML goes on with
it: the start that follows must find it right. By the daemon, and by the hook alone.
"""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from tests.domains import (
    besides_vgpus,
    device_of,
    domain_xml,
    hostdev,
    pci_hostdev,
    renamed,
    uuid_of,
    vgpus_of,
)
from tests.product import PATIENCE, Answer, Product
from tests.simulated.kinds import Kind
from tests.simulated.test_daemon import only_client
from vgpu_hook import store_file
from vgpu_hook.model import VgpuRequest
from vgpu_hook.store import Store

ARRIVALS = ["restore", "migrate"]
V4, V5 = "0000:41:00.4", "0000:41:00.5"
AWAY = "0000:c1:00.4"
"""A VF of another host."""
PROFILE = "NVIDIA L40S-2Q"
PLAIN = domain_xml("plain", hostdevs=[hostdev(device_of(uuid_of("x")), None)])
NO_LIBVIRT = "[daemon]\nlibvirt = 'qemu+unix:///system?socket=/nonexistent'\n"
l40s = pytest.mark.simhost("l40s")


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


@contextmanager
def records(product: Product) -> Iterator[Store]:
    opened = store_file.open_store(str(product.state), "test", wait=60)
    assert opened is not None
    with closing(opened):
        yield opened


def on_record(product: Product, name: str, *requests: VgpuRequest) -> None:
    """Put on record what a domain asks for now, as the listener does at libvirt's events."""
    with records(product) as store:
        store.domains.set_requests(uuid_of(name), name, requests)


def image(name: str, vf: str, attributes: str = "") -> bytes:
    """A domain with a VF that was chosen for it."""
    asked, hostdevs = {"0": PROFILE}, [pci_hostdev(vf)]
    return domain_xml(name, asked, hostdevs=hostdevs, attributes=attributes, owner=uuid_of(name))


def run(product: Product, name: str, vf: str) -> None:
    assert product.hook(name, "prepare", image(name, vf)) == (0, "", "")


def stop(product: Product, name: str, vf: str) -> None:
    assert product.hook(name, "stopped", image(name, vf)) == (0, "", "")


def goes_on(product: Product, name: str, operation: str, xml: bytes) -> dict[str, tuple[str, str]]:
    """Have the VM arrive, and start with what was printed; return the devices that it got."""
    answer = product.hook(name, operation, xml)
    assert (answer.status, answer.err) == (0, "")
    if answer.out:
        assert besides_vgpus(answer.out) == besides_vgpus(xml)
        assert answer.out.encode() != xml
        xml = answer.out.encode()
    assert product.hook(name, "prepare", xml) == (0, "", "")
    return vgpus_of(xml)


def is_refused(answer: Answer, *told: str) -> None:
    assert (answer.status, answer.out) == (1, "")
    assert len(answer.err.splitlines()) == 1
    assert answer.err.startswith("vgpu-hook: ")
    for text in told:
        assert text in answer.err


def test_i5_r9_what_is_right_is_passed_without_a_word(served: Product, kind: Kind) -> None:
    a = kind.xml("a", marked=True)
    for _ in ("unknown", "known"):
        served.sim.reset_writes()
        for operation in ARRIVALS:
            assert served.hook("a", operation, a) == (0, "", "")
        assert served.sim.writes() == []
        assert served.rows() == []
        assert served.hook("a", "prepare", a) == (0, "", "")
        assert kind.present() == kind.vgpus("a")
        assert served.hook("a", "stopped", a) == (0, "", "")


@l40s
def test_r9_a_restored_vm_comes_back_on_the_vf_that_it_has_now(served: Product) -> None:
    """Though the one of the image is free, and would do."""
    run(served, "a", V5)
    stop(served, "a", V5)
    assert goes_on(served, "a", "restore", image("a", V4)) == {"0": ("pci", V5)}
    assert "restored" in served.events()


@l40s
def test_r9_a_restored_vm_gets_another_vf_when_its_current_one_is_taken(product: Product) -> None:
    run(product, "a", V5)
    stop(product, "a", V5)
    run(product, "b", V5)
    ((_, vf),) = goes_on(product, "a", "restore", image("a", V4)).values()
    assert vf != V5
    assert product.sim.current_types() == {V5: 1148, vf: 1148}


def test_r9_an_image_from_before_the_request_is_refused_with_the_way_out(
    product: Product, kind: Kind
) -> None:
    """The hook looks itself: it is only the restore of a VM that nobody sees to be ours."""
    old = domain_xml("a")
    on_record(product, "a", VgpuRequest("0", kind.profile), VgpuRequest("gpu1", kind.other))
    is_refused(
        product.hook("a", "restore", old),
        f"domain 'a': its saved state is from before it asked for {kind.profile!r}",
        "run: vgpu-hook detach --slot 0 a && vgpu-hook detach --slot gpu1 a",
        "virsh managedsave-remove a",
    )
    assert product.hook("a", "migrate", old) == (0, "", "")
    on_record(product, "a")
    assert product.hook("a", "restore", old) == (0, "", "")


def test_r9_an_image_with_other_vgpus_than_the_domain_has_now_is_refused_whole(
    served: Product, kind: Kind
) -> None:
    a = kind.xml("a", marked=True)
    saved = VgpuRequest("0", kind.profile)
    on_record(served, "a", saved)
    for now, told in (
        ([saved._replace(profile=kind.other)], f"asks for {kind.other!r} there now"),
        ([saved, VgpuRequest("1", kind.other)], "vgpu-hook detach --slot 1 a"),
        ([saved._replace(slot="x")], "vgpu-hook detach --slot x a"),
        ([], "asks for none there now"),
    ):
        on_record(served, "a", *now)
        is_refused(served.hook("a", "restore", a), told, "virsh managedsave-remove a")
        assert served.query("SELECT * FROM reservation") == []
    # From elsewhere it comes with what it asks for there.
    assert served.hook("a", "migrate", a) == (0, "", "")
    on_record(served, "a", saved)
    assert goes_on(served, "a", "restore", a) == vgpus_of(a)


def test_r9_one_type_under_another_name_is_no_difference(product: Product, kind: Kind) -> None:
    a = kind.xml("a", marked=True)
    for spelling in kind.spellings:
        on_record(product, "a", VgpuRequest("0", spelling))
        answer = product.hook("a", "restore", a)
        assert (answer.status, answer.err) == (0, "")
        assert vgpus_of(answer.out or a) == vgpus_of(a)


@pytest.mark.simhost("l40s-two")
def test_r9_the_gpu_that_the_domain_is_pinned_to_now_counts(product: Product) -> None:
    on_record(product, "a", VgpuRequest("0", PROFILE, gpu="0000:c1:00.0"))
    answer = product.hook("a", "restore", image("a", V4, attributes="gpu='0000:41:00.0'"))
    assert 'gpu="0000:c1:00.0"' in answer.out
    assert "0000:41:00.0" not in answer.out
    ((_, vf),) = vgpus_of(answer.out).values()
    assert vf.startswith("0000:c1:")
    assert product.hook("a", "prepare", answer.out.encode()) == (0, "", "")


def test_r8_a_restored_fork_gets_vgpus_of_its_own(product: Product, kind: Kind) -> None:
    a = kind.xml("a", kind.profile, kind.other, marked=True)
    theirs = {device for _, device in vgpus_of(a).values()}
    assert product.hook("a", "prepare", a) == (0, "", "")
    present = kind.present()
    for name in ("fork", "late"):
        got = goes_on(product, name, "restore", renamed(a, "a", name))
        devices = [device for _, device in got.values()]
        assert list(got) == ["0", "1"]
        assert not theirs & set(devices)
        if kind.name == "mdev":
            assert devices == [device_of(uuid_of(name), slot) for slot in got]
        present |= dict(zip(devices, (kind.type_id, kind.other_id), strict=True))
        assert kind.present() == present
        if name == "fork":  # the other one comes while nobody is on them
            product.hook("a", "stopped", a)
            present = {device: present[device] for device in present if device not in theirs}


def test_r8_a_fork_that_may_have_no_vgpu_is_not_restored(product: Product, kind: Kind) -> None:
    for policy in ("none", "refuse"):
        attributes = f"fork='{policy}'"
        fork = renamed(kind.xml("a", attributes=attributes, marked=True), "a", "fork")
        is_refused(product.hook("fork", "restore", fork), "domain 'fork'", "set fork='new'")
        assert product.query("SELECT * FROM reservation") == []
    goes_on(product, "fork", "restore", fork.replace(attributes.encode(), b""))


@l40s
@pytest.mark.parametrize("taken", [False, True], ids=["not there", "taken"])
def test_a_vm_that_migrates_here_gets_a_vf_of_this_host(product: Product, taken: bool) -> None:
    if taken:
        run(product, "b", V4)
    ((kind, vf),) = goes_on(product, "a", "migrate", image("a", V4 if taken else AWAY)).values()
    assert kind == "pci"
    assert product.sim.current_types() == {vf: 1148} | ({V4: 1148} if taken else {})
    assert "migrated" in product.events()


@l40s
def test_a_vm_with_an_mdev_wakes_up_on_a_host_with_vfs(served: Product) -> None:
    present: dict[str, int] = {}
    for operation in ARRIVALS:
        vm = domain_xml(operation, {"0": PROFILE, "1": "1145"})
        got = goes_on(served, operation, operation, vm)
        assert [kind for kind, _ in got.values()] == ["pci", "pci"]
        devices = [device for _, device in got.values()]
        present |= dict(zip(devices, (1148, 1145), strict=True))
        assert served.sim.current_types() == present
    answer = served.hook("b", "migrate", domain_xml("b", {"0": PROFILE}))
    assert "model=" not in answer.out
    assert 'managed="no"' in answer.out


def test_a_vm_with_a_vf_wakes_up_on_a_host_with_mdevs(product: Product) -> None:
    driven = pci_hostdev(V4).replace("<source>", "<driver name='vfio'/><source>")
    for operation in ARRIVALS:
        own = uuid_of(operation)
        vm = domain_xml(operation, {"0": "mtty-1"}, hostdevs=[driven], owner=own)
        assert goes_on(product, operation, operation, vm) == {"0": ("mdev", device_of(own))}
        assert device_of(own) in product.sim.devices()
    answer = product.hook(operation, operation, vm)
    assert 'model="vfio-pci"' in answer.out
    assert "driver" not in answer.out
    assert "owner=" not in answer.out


@pytest.mark.parametrize("carried_by", ["mdev", "pci"])
def test_a_profile_that_nobody_offers_here_is_named_when_the_vm_is_refused(
    product: Product, kind: Kind, carried_by: str
) -> None:
    hostdevs = [pci_hostdev(AWAY)] if carried_by == "pci" else None
    a = domain_xml("a", {"0": "NVIDIA X-1Q"}, hostdevs=hostdevs)
    for operation in ARRIVALS:
        answer = product.hook("a", operation, a)
        if answer.status == 0:  # as it is, then: the start that follows says why
            answer = product.hook("a", "prepare", answer.out.encode() or a)
        is_refused(answer, "domain 'a'", "profile 'NVIDIA X-1Q' is not offered")
    assert kind.present() == {}


def broken(product: Product, what: str, folder: Path, stack: ExitStack) -> dict[str, str]:
    """Break something; return what is to be added to the environment."""
    script = folder / "python"
    if what == "config":
        product.config.write_text("]] garbage")
    elif what == "state":
        product.config.write_text(product.config.read_text().replace("/state'", "/no-folder'"))
        (product.state.parent / "no-folder").write_text("no folder")
    elif what == "store":
        for leftover in product.state.glob("store.db-*"):
            leftover.unlink()
        (product.state / "store.db").write_bytes(b"this is not a database" * 100)
    elif what == "store from the future":
        connection = sqlite3.connect(product.state / "store.db")
        connection.execute("PRAGMA user_version = 99")
        connection.close()
    elif what == "read-only state":
        state = str(product.state)
        subprocess.run(["mount", "--bind", state, state], check=True)
        stack.callback(subprocess.run, ["umount", state], check=True)
        subprocess.run(["mount", "-o", "remount,bind,ro", state, state], check=True)
    elif what == "daemon":
        product.configure(extra=NO_LIBVIRT)
        process = product.daemon()
        stack.callback(process.wait)
        stack.callback(process.kill)
        process.send_signal(signal.SIGSTOP)
    elif what == "no lxml":
        script.write_text(
            f"#!/bin/sh\nshift 4; code=$1; shift\nexec {sys.executable} -I -X utf8 -c"
            ' "import sys; sys.modules[\'lxml\'] = None\n$code" "$@"\n'
        )
    elif what == "noisy python":
        script.write_text("#!/bin/sh\necho '<domain/>'\necho Fatal Python error >&2\nexit 1\n")
    else:
        return {"VGPU_HOOK_PYTHON": what}
    if script.exists():
        script.chmod(0o755)
        return {"VGPU_HOOK_PYTHON": str(script)}
    return {}


BREAKAGES = ["config", "state", "store", "store from the future", "read-only state", "daemon"]
PYTHONS = ["/bin/false", "/nonexistent/python3", "/usr/bin/python3", "no lxml", "noisy python"]


@pytest.mark.parametrize("what", [*BREAKAGES, *PYTHONS])
def test_r14_i10_a_vm_without_a_request_wakes_up_whatever_is_broken(
    product: Product, tmp_path: Path, what: str
) -> None:
    on_record(product, "a", VgpuRequest("0", "mtty-1"))
    with ExitStack() as stack:
        environment = broken(product, what, tmp_path, stack)
        for operation in ARRIVALS:
            arguments = ["plain", operation, "begin", "-"]
            assert product.hook_argv(arguments, PLAIN, **environment) == (0, "", ""), operation


@pytest.mark.parametrize("what", ["config", "state", "store", "store from the future", *PYTHONS])
def test_a_vm_with_a_request_is_refused_in_one_line_when_something_is_broken(
    product: Product, tmp_path: Path, what: str
) -> None:
    on_record(product, "a", VgpuRequest("0", "mtty-1"))
    a = domain_xml("a", {"0": "mtty-1"})
    with ExitStack() as stack:
        environment = broken(product, what, tmp_path, stack)
        for operation in ARRIVALS:
            is_refused(product.hook_argv(["a", operation, "begin", "-"], a, **environment))


@pytest.mark.parametrize("operation", ARRIVALS)
def test_xml_that_is_not_understood_is_refused_in_one_line(
    product: Product, operation: str
) -> None:
    for found, damaged, told in (
        (b"</domain>", b"", "can't be read"),
        (b"domain", b"demesne", "a <domain> was expected"),
        (b"<domain", b"<!DOCTYPE domain [<!ENTITY x 'y'>]><domain", "has a DTD"),
        (uuid_of("a").encode(), b"nonsense", "no valid <uuid>"),
        (b'"mtty-1"', b'"../../x"', "is not allowed"),
        (b"/></vgpu:vgpus>", b"colour='red'/></vgpu:vgpus>", "is not allowed"),
    ):
        xml = domain_xml("a", {"0": "mtty-1"})
        assert found in xml
        is_refused(product.hook("a", operation, xml.replace(found, damaged)), told)


@l40s
@pytest.mark.parametrize("named", [False, True], ids=["unnamed", "named"])
def test_i8_vms_that_arrive_at_once_and_name_one_vf_get_one_each(
    served: Product, named: bool
) -> None:
    """`named`: each VF by the definition of a stopped domain too, as on a host with many."""
    if named:
        with records(served) as store:
            for n, vf in enumerate(served.sim.state()["vfs"]):
                store.devices.reserve(uuid_of(f"stopped{n}"), "0", vf)
    vms = {f"vm{n}": image(f"vm{n}", V4) for n in range(5)}
    operations = dict(zip(vms, [*ARRIVALS] * 3, strict=False))
    calls = {name: served.popen(name, operations[name], xml) for name, xml in vms.items()}
    answers = {name: call.communicate(timeout=PATIENCE) for name, call in calls.items()}
    assert [call.returncode for call in calls.values()] == [0] * 5
    arrived = {name: answers[name][0] or vms[name] for name in vms}
    vfs = {name: vgpus_of(xml)["0"][1] for name, xml in arrived.items()}
    assert len(set(vfs.values())) == 5, vfs
    starts = [served.popen(name, "prepare", xml) for name, xml in arrived.items()]
    assert [start.communicate(timeout=PATIENCE) for start in starts] == [(b"", b"")] * 5
    assert served.sim.current_types() == dict.fromkeys(vfs.values(), 1148)


def test_i3_a_kernel_that_does_not_answer_is_given_up_on(product: Product, kind: Kind) -> None:
    """What can't be planned stays as it is, or is refused; it does not start."""
    product.configure(deadline=4)
    product.sim.fault("read", kind.free_file, "hang")
    a = kind.xml("a")
    answer = product.hook("a", "migrate", a)
    if answer != (0, "", ""):
        is_refused(answer)
    is_refused(product.hook("a", "prepare", a))
    product.sim.heal()
    assert kind.present() == {}
