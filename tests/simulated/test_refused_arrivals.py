"""A VM that must not wake up here: it does not, the image stays, and what to do is said.

By the call for a VM from another host; for a saved one by the start after it (arrivals.py).
"""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.domains import device_of, domain_xml, hostdev, pci_hostdev, renamed, uuid_of, vgpus_of
from tests.product import Product
from tests.simulated.arrivals import (
    ARRIVALS,
    AWAY,
    PROFILE,
    V4,
    V5,
    besides_note,
    does_not_arrive,
    goes_on,
    image,
    is_left_to_its_start,
    is_refused,
    l40s,
    on_record,
    records,
    reservations,
    with_note,
)
from tests.simulated.daemons import NO_LIBVIRT
from tests.simulated.kinds import Kind
from vgpu_hook.model import VgpuRequest

PLAIN = domain_xml("plain", hostdevs=[hostdev(device_of(uuid_of("x")), None)])


def test_r9_an_image_from_before_the_request_is_refused_with_the_way_out(
    product: Product, kind: Kind
) -> None:
    """The hook looks itself: it is only the restore of a VM that nobody sees to be ours."""
    old = domain_xml("a")
    on_record(product, "a", VgpuRequest("0", kind.profile), VgpuRequest("gpu1", kind.other))
    does_not_arrive(
        product,
        "a",
        "restore",
        old,
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
        for xml in (a, with_note(a, "of another time")):
            does_not_arrive(served, "a", "restore", xml, told, "virsh managedsave-remove a")
        assert reservations(served) == []
    # From elsewhere it comes with what it asks for there.
    assert served.hook("a", "migrate", a) == (0, "", "")
    on_record(served, "a", saved)
    assert goes_on(served, "a", "restore", a) == vgpus_of(a)


def test_r8_a_fork_that_may_have_no_vgpu_is_not_restored(product: Product, kind: Kind) -> None:
    for policy in ("none", "refuse"):
        attributes = f"fork='{policy}'"
        fork = renamed(kind.xml("a", attributes=attributes, marked=True), "a", "fork")
        told = ("domain 'fork'", "set fork='new' in its <metadata>: ")
        does_not_arrive(product, "fork", "restore", fork, *told, "virsh save-image-edit FILE")
        on_record(product, "fork", VgpuRequest("0", kind.profile, fork=policy))
        does_not_arrive(product, "fork", "restore", fork, *told, "virsh edit fork")
        product.query("DELETE FROM request")
        product.query("DELETE FROM domain")
        # One that migrates is what it was where it ran: its start tells.
        assert product.hook("fork", "migrate", fork) == (0, "", "")
        is_refused(product.hook("fork", "prepare", fork), "domain 'fork'", "has inherited")
        assert reservations(product) == []
    goes_on(product, "fork", "restore", fork.replace(attributes.encode(), b""))


@pytest.mark.parametrize("carried_by", ["mdev", "pci"])
def test_a_profile_that_nobody_offers_here_is_named_when_the_vm_is_refused(
    product: Product, kind: Kind, carried_by: str
) -> None:
    hostdevs = [pci_hostdev(AWAY)] if carried_by == "pci" else None
    a = domain_xml("a", {"0": "NVIDIA X-1Q"}, hostdevs=hostdevs)
    for operation in ARRIVALS:
        told = ("domain 'a'", "profile 'NVIDIA X-1Q' is not offered")
        does_not_arrive(product, "a", operation, a, *told)
    assert kind.present() == {}


def broken(product: Product, what: str, folder: Path, stack: ExitStack) -> dict[str, str]:
    """Break something; return what is to be added to the environment."""
    script = folder / "python"
    if what == "config":
        product.set_config("]] garbage")
    elif what == "state":
        product.set_config(product.config.read_text().replace("/state'", "/no-folder'"))
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
            "#!/bin/sh\nwhile [ $1 != -c ]; do shift; done; code=$2; shift 2\n"
            f"exec {sys.executable} -I -X utf8 -c"
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


@pytest.mark.parametrize("what", ["config", "state", "store", "store from the future"])
def test_a_vm_with_a_request_is_refused_in_one_line_when_something_is_broken(
    product: Product, tmp_path: Path, what: str
) -> None:
    on_record(product, "a", VgpuRequest("0", "mtty-1"))
    a = domain_xml("a", {"0": "mtty-1"})
    with ExitStack() as stack:
        environment = broken(product, what, tmp_path, stack)
        for operation in ARRIVALS:
            does_not_arrive(product, "a", operation, a, **environment)


@pytest.mark.parametrize("what", PYTHONS)
def test_a_program_that_is_not_whole_lets_no_vm_wake_up_with_a_vgpu(
    product: Product, tmp_path: Path, what: str
) -> None:
    on_record(product, "a", VgpuRequest("0", "mtty-1"))
    a = domain_xml("a", {"0": "mtty-1"})
    told = "reinstall the package vgpu-hook"
    with ExitStack() as stack:
        environment = broken(product, what, tmp_path, stack)
        is_left_to_its_start(product, "a", a, told, **environment)
        does_not_arrive(product, "a", "migrate", a, told, **environment)


@pytest.mark.parametrize("operation", ARRIVALS)
def test_xml_that_is_not_understood_is_refused_in_one_line(
    product: Product, operation: str
) -> None:
    unreadable = ("can't be read", "a <domain> was expected", "has a DTD")
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
        xml = xml.replace(found, damaged)
        if operation == "restore" and told in unreadable:
            is_left_to_its_start(product, "a", xml, told)
        else:
            does_not_arrive(product, "a", operation, xml, told)


def test_i3_a_kernel_that_does_not_answer_is_given_up_on(product: Product, kind: Kind) -> None:
    """What can't be planned stays as it is, or is refused; it does not start."""
    product.configure(deadline=4)
    product.sim.fault("read", kind.free_file, "hang")
    a = kind.xml("a")
    answer = product.hook("a", "migrate", a)
    if answer != (0, "", ""):
        is_refused(answer)
    answer = product.hook("a", "restore", a)
    assert (answer.status, answer.err) == (0, "")
    is_refused(product.hook("a", "prepare", answer.out.encode() or a))
    is_refused(product.hook("a", "prepare", a))
    product.sim.heal()
    assert kind.present() == {}


NOISY_LIBRARY = """#!/bin/sh
while [ $1 != -c ]; do shift; done; code=$2; shift 2
exec {python} -I -X utf8 -c "
import sys
class Noise:
    def find_spec(self, name, *more):
        if name == 'lxml':
            print('noise of a library', file=sys.stderr)
sys.meta_path.insert(0, Noise())
$code" "$@"
"""


def test_r14_what_a_library_says_is_neither_xml_nor_the_reason(
    product: Product, tmp_path: Path
) -> None:
    """A warning, say: libvirt would take it for the XML, also of a VM without a request."""
    script = tmp_path / "python"
    script.write_text(NOISY_LIBRARY.format(python=sys.executable))
    script.chmod(0o755)
    environment = {"VGPU_HOOK_PYTHON": str(script)}
    on_record(product, "a", VgpuRequest("0", "mtty-1"))
    a = domain_xml("a", {"0": "mtty-1"})
    for operation in (*ARRIVALS, "prepare", "stopped"):
        for name, xml in (("plain", PLAIN), ("a", a)):
            arguments = [name, operation, "begin", "-"]
            assert product.hook_argv(arguments, xml, **environment) == (0, "", "")
    bad = domain_xml("a", {"0": "mtty-2"})
    does_not_arrive(product, "a", "restore", bad, "asks for 'mtty-1'", **environment)


@l40s
def test_reservations_are_untouched_by_what_is_refused(served: Product) -> None:
    """Those of the VM, of others, and of others that are on their way."""
    with records(served) as store:
        store.devices.reserve(uuid_of("a"), "0", V5)
        store.devices.reserve(uuid_of("a"), "1", V4)
        store.devices.reserve(uuid_of("b"), "0", V4)
        store.devices.reserve(uuid_of("c"), "0", V5, arriving=True)
    before = reservations(served)
    a = image("a", AWAY, AWAY)
    second = b'name="1" profile="NVIDIA L40S-2Q"'
    assert second in a
    not_offered = a.replace(second, b'name="1" profile="NVIDIA X-1Q"')
    fork = renamed(a.replace(second, second + b" fork='none'"), "a", "fork")
    odd = a.replace(second, second + b" colour='red'")
    asks = VgpuRequest("0", PROFILE)
    for operation in ARRIVALS:
        does_not_arrive(served, "a", operation, not_offered, "'NVIDIA X-1Q' is not offered")
        does_not_arrive(served, "a", operation, odd, "is not allowed")
    does_not_arrive(served, "fork", "restore", fork, "set fork='new'")
    on_record(served, "a", asks, asks._replace(slot="1", profile="1145"))
    does_not_arrive(served, "a", "restore", a, "asks for '1145' there now")
    assert reservations(served) == before
    assert not {"restored", "migrated"} & set(served.events())


def test_a_reason_is_noted_whatever_is_in_it(product: Product) -> None:
    """Names are the tenants': the XML is whole, and virsh gets one line."""
    for name in ("quo'te\"s", "a<b>&c;", "-x", "Übung ☃", "]]>"):
        old = domain_xml(name)
        on_record(product, name, VgpuRequest("0", "mtty-1"))
        does_not_arrive(product, name, "restore", old, repr(name))
        on_record(product, name, VgpuRequest("0", "mtty-2"))
        other = domain_xml(name, {"0": "mtty-1"})
        does_not_arrive(product, name, "restore", other, "asks for 'mtty-2' there now")


def test_what_a_vm_runs_without_is_taken_out_of_its_request(served: Product, kind: Kind) -> None:
    """It was asked for while the VM ran."""
    a = kind.xml("a", kind.profile, marked=True)
    more = b'<vgpu:vgpu name="late" profile="x"/></vgpu:vgpus>'
    asked = a.replace(b"</vgpu:vgpus>", more)
    is_refused(served.hook("a", "prepare", asked), "'x' (slot 'late') is asked for, but has no")
    for operation in ARRIVALS:
        answer = served.hook("a", operation, asked)
        assert (answer.status, answer.err) == (0, "")
        assert besides_note(answer.out.encode()) == besides_note(a)
        assert served.hook("a", "prepare", answer.out.encode()) == (0, "", "")
        assert served.hook("a", "stopped", answer.out.encode()) == (0, "", "")
    # If the domain asks for it, the guest would come back without: it is not restored so.
    late = VgpuRequest("late", kind.other)
    on_record(served, "a", VgpuRequest("0", kind.profile), late)
    does_not_arrive(served, "a", "restore", asked, "vgpu-hook detach --slot late a")
