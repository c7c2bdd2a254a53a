"""The main job through the real hook script on a simulated host: prepare, stopped, release.

On both frameworks, but for what concerns the derived UUID, at the end. What is vendor-vfio's alone
is in test_vendor_vfio.py.
"""

from __future__ import annotations

import pytest

from tests.domains import device_of, domain_xml, uuid_of
from tests.product import Product
from tests.simulated.kinds import Kind


def test_start_makes_the_device_and_stop_takes_it_away(product: Product, kind: Kind) -> None:
    a = kind.xml("a")
    assert kind.free() == kind.room
    assert product.hook("a", "prepare", a) == (0, "", "")
    assert kind.present() == kind.vgpus("a")
    assert product.rows() == [("a", "0", "assigned")]
    assert product.rows("framework, device, type") == [(kind.name, kind.device("a"), kind.type_id)]
    assert kind.free() == kind.room - 1
    assert product.hook("a", "stopped", a) == (0, "", "")
    assert kind.present() == {}
    assert product.hook("a", "release", a, "destroyed") == (0, "", "")
    assert product.rows() == []


def test_r1_r2_stopped_has_released_and_persisted_before_it_answers(
    product: Product, kind: Kind
) -> None:
    a = kind.xml("a")
    product.hook("a", "prepare", a)
    product.hook("a", "stopped", a)
    assert kind.present() == {}
    assert product.rows() == []
    assert product.events()[-1] == "released"


def test_r3_r4_i6_a_failed_release_is_retained_and_tried_again(
    product: Product, kind: Kind
) -> None:
    a = kind.xml("a")
    product.hook("a", "prepare", a)
    product.configure(deadline=4)  # a VF's reset is tried again until half of it is over
    kind.fail_remove("EIO")
    assert product.hook("a", "stopped", a) == (0, "", "")
    assert product.rows("state") == [("retained",)]
    assert "EIO" in product.rows("reason")[0][0]
    assert kind.present() == kind.vgpus("a")
    assert len(kind.removals()) in kind.tries
    product.sim.heal()
    assert product.hook("a", "release", a, "destroyed") == (0, "", "")
    assert product.rows() == []
    assert kind.present() == {}


@pytest.mark.parametrize("operation", ["stopped", "release"])
@pytest.mark.parametrize(
    "request_now",
    [
        b'<vgpu:vgpu profile="x" typo="1"/>',
        b'<vgpu:vgpu slot="0" profile="x"/><vgpu:vgpu slot="0" profile="x"/>',
        b'<vgpu:vgpu profile=""/>',
        b"",
    ],
    ids=["an unknown attribute", "a slot twice", "no profile", "nothing"],
)
def test_r1_r2_a_stop_gives_back_what_is_on_record_whatever_is_asked_for_by_now(
    product: Product, kind: Kind, request_now: bytes, operation: str
) -> None:
    """`virsh metadata` changes the live XML of a running VM, and checks nothing."""
    product.hook("a", "prepare", kind.xml("a"))
    assert product.rows() == [("a", "0", "assigned")]
    container = b'<vgpu:vgpus xmlns:vgpu="urn:vgpu-hook:domain:1">%s</vgpu:vgpus>' % request_now
    now = domain_xml("a").replace(b"<devices", b"<metadata>%s</metadata><devices" % container, 1)
    assert container in now
    assert product.hook("a", operation, now) == (0, "", "")
    assert product.rows() == []
    assert kind.present() == {}


def test_r5_start_releases_what_an_earlier_run_left(product: Product, kind: Kind) -> None:
    a = kind.xml("a")
    product.hook("a", "prepare", a)
    assert product.hook("a", "prepare", a) == (0, "", "")
    assert product.rows() == [("a", "0", "assigned")]
    assert product.events() == [
        "intent to create",
        "assigned",
        "intent to release",
        "released",
        "intent to create",
        "assigned",
    ]


def test_r5_the_release_stays_persisted_when_the_start_fails_later(
    product: Product, kind: Kind
) -> None:
    a = kind.xml("a")
    product.hook("a", "prepare", a)
    kind.fail_create("EIO")
    answer = product.hook("a", "prepare", a)
    assert answer.status == 1
    assert "EIO" in answer.err
    assert product.rows() == []
    assert kind.present() == {}


def test_r6_a_device_in_use_is_kept(product: Product, kind: Kind) -> None:
    a = kind.xml("a")
    product.hook("a", "prepare", a)
    pid = product.sim.hold(kind.device("a"))
    assert product.hook("a", "stopped", a) == (0, "", "")
    assert kind.present() == kind.vgpus("a")
    assert f"in use by qemu-system-x86 (pid {pid}" in product.rows("reason")[0][0]
    assert kind.removals() == []
    product.sim.drop(pid)
    product.hook("a", "release", a)
    assert product.rows() == []
    assert kind.present() == {}


def test_r6_i2_unreadable_handles_count_as_in_use(product: Product, kind: Kind) -> None:
    a = kind.xml("a")
    product.hook("a", "prepare", a)
    product.sim.add_process(77, "other", "/dev/null")
    product.sim.fault("read", "proc/77/fd", "EACCES")
    product.hook("a", "stopped", a)
    assert kind.present() == kind.vgpus("a")
    assert "can't tell who uses it" in product.rows("reason")[0][0]


def test_r6_a_device_that_is_not_what_was_made_is_kept(product: Product, kind: Kind) -> None:
    a = kind.xml("a")
    product.hook("a", "prepare", a)
    product.query(f"UPDATE assignment SET type = '{kind.other_id}'")
    product.hook("a", "stopped", a)
    assert kind.present() == kind.vgpus("a")
    there = f"it is {kind.type_id} on {kind.parent(kind.device('a'))}, not {kind.other_id}"
    assert there in product.rows("reason")[0][0]


def test_r8_i1_a_fork_is_refused_and_its_parent_untouched(product: Product, kind: Kind) -> None:
    device = kind.device("a")
    clone = domain_xml("clone", {"0": kind.profile}, hostdevs=[kind.hostdev(device)])
    product.hook("a", "prepare", kind.xml("a"))
    pid = product.sim.hold(device)
    product.sim.reset_writes()
    answer = product.hook("clone", "prepare", clone)
    assert answer.status == 1
    assert "'clone'" in answer.err
    assert device in answer.err
    assert "'a'" in answer.err
    assert f"run: vgpu-hook attach --profile {kind.profile} --slot 0 clone" in answer.err
    assert len(answer.err.splitlines()) == 1
    for operation in ("stopped", "release"):
        assert product.hook("clone", operation, clone) == (0, "", "")
    assert product.sim.writes() == []
    assert product.rows() == [("a", "0", "assigned")]
    product.sim.drop(pid)


def test_r8_i1_a_fork_without_its_request_is_refused_too(product: Product, kind: Kind) -> None:
    clone = domain_xml("clone", hostdevs=[kind.hostdev(kind.device("a"))])
    product.hook("a", "prepare", kind.xml("a"))
    answer = product.hook("clone", "prepare", clone)
    assert answer.status == 1
    assert "belongs to domain 'a'" in answer.err
    product.hook("clone", "stopped", clone)
    assert kind.present() == kind.vgpus("a")


def test_r11_the_second_vgpu_fails_and_the_first_is_given_back(
    product: Product, kind: Kind
) -> None:
    two = kind.xml("two", kind.profile, kind.other)
    kind.fail_create("EIO", kind.other)
    answer = product.hook("two", "prepare", two)
    assert answer.status == 1
    assert "slot '1'" in answer.err
    assert [w.outcome for w in kind.removals()] == ["ok"]
    assert kind.present() == {}
    assert product.rows() == []
    for operation in ("stopped", "release"):
        assert product.hook("two", operation, two) == (0, "", "")


def test_r11_gives_back_only_what_this_start_took(product: Product, kind: Kind) -> None:
    product.hook("a", "prepare", kind.xml("a"))
    two = kind.xml("two", kind.profile, "nothing-like-it")
    assert product.hook("two", "prepare", two).status == 1
    assert kind.present() == kind.vgpus("a")
    assert product.rows() == [("a", "0", "assigned")]


def test_after_a_reboot_start_makes_the_same_device(product: Product, kind: Kind) -> None:
    a = kind.xml("a")
    product.hook("a", "prepare", a)
    product.sim.reboot()
    assert kind.present() == {}
    assert product.hook("a", "prepare", a) == (0, "", "")
    assert kind.present() == kind.vgpus("a")
    assert product.rows() == [("a", "0", "assigned")]


def test_explain_tells_one_domains_history_in_its_order(product: Product, kind: Kind) -> None:
    a, other = kind.xml("a"), kind.xml("other")
    for operation in ("prepare", "stopped"):
        assert product.hook("a", operation, a) == (0, "", "")
        assert product.hook("other", operation, other) == (0, "", "")
    for subject in ("a", uuid_of("a"), kind.device("a")):
        history = product.json("explain", subject)["history"]
        assert {entry["domain_name"] for entry in history} == {"a"}
        assert [entry["event"] for entry in history] == [
            "intent to create",
            "assigned",
            "intent to release",
            "released",
        ]
    table = product.command("explain", "a")
    assert table.status == 0
    assert "intent to release" in table.out


def test_i3_a_remove_that_never_returns_is_given_up_on(product: Product, kind: Kind) -> None:
    a = kind.xml("a")
    product.hook("a", "prepare", a)
    product.configure(deadline=2)
    kind.fail_remove("hang")
    assert product.hook("a", "stopped", a) == (0, "", "")
    assert product.rows("state") == [("retained",)]
    assert "has not returned within" in product.rows("reason")[0][0]
    assert product.hook("a", "release", a) == (0, "", "")
    product.sim.heal()


def test_i3_a_create_that_never_returns_refuses_the_start(product: Product, kind: Kind) -> None:
    product.configure(deadline=2)
    kind.fail_create("hang")
    answer = product.hook("a", "prepare", kind.xml("a"))
    assert answer.status == 1
    assert "has not returned within" in answer.err
    assert product.rows("state") == [("retained",)]
    product.sim.heal()


def test_i3_a_kernel_file_that_never_answers_a_read_refuses_the_start(
    product: Product, kind: Kind
) -> None:
    product.configure(deadline=2)
    product.sim.fault("read", kind.free_file, "hang")
    answer = product.hook("a", "prepare", kind.xml("a"))
    assert answer.status == 1
    assert "has not returned within" in answer.err
    product.sim.heal()


# -- mdev alone: a device under the derived UUID is proved to be this slot's by that UUID -----
# Under vendor-vfio nothing proves it: test_dirty_a_vf_with_an_unknown_type_is_left_alone and
# test_i9_a_record_of_another_boot_says_nothing_of_the_vf, in test_vendor_vfio.py.

A = domain_xml("a", {"0": "mtty-1"})
DEVICE = device_of(uuid_of("a"))


def test_i9_a_record_of_another_boot_proves_nothing(product: Product) -> None:
    product.hook("a", "prepare", A)
    product.sim.reboot()
    product.sim.make(DEVICE, "mtty", "mtty-1")
    product.hook("a", "stopped", A)
    assert product.sim.devices() == [DEVICE]
    assert "another boot" in product.rows("reason")[0][0]


def test_a_device_under_the_derived_uuid_is_adopted(product: Product) -> None:
    product.sim.make(DEVICE, "mtty", "mtty-1")
    assert product.hook("a", "prepare", A) == (0, "", "")
    assert product.sim.writes() == []
    assert product.events() == ["adopted"]
    product.hook("a", "stopped", A)
    assert product.sim.devices() == []


@pytest.mark.parametrize("state", ["held", "other type"])
def test_a_device_under_the_derived_uuid_that_does_not_fit_is_refused(
    product: Product, state: str
) -> None:
    product.sim.make(DEVICE, "mtty", "mtty-1" if state == "held" else "mtty-2")
    if state == "held":
        product.sim.hold(DEVICE)
    answer = product.hook("a", "prepare", A)
    assert answer.status == 1
    assert "exists already" in answer.err
    assert product.sim.writes() == []
    assert product.rows() == []
