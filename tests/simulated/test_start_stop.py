"""The main job through the real hook script on a simulated host: prepare, stopped, release."""

from __future__ import annotations

import pytest

from tests.domains import device_of, domain_xml, hostdev, uuid_of
from tests.product import Product

A = domain_xml("a", {"0": "mtty-1"})
DEVICE = device_of(uuid_of("a"))


def test_start_makes_the_device_and_stop_takes_it_away(product: Product) -> None:
    assert product.hook("a", "prepare", A) == (0, "", "")
    assert product.sim.devices() == [DEVICE]
    assert product.rows() == [("a", "0", "assigned")]
    assert product.sim.available("mtty", "mtty-1") == 23
    assert product.hook("a", "stopped", A) == (0, "", "")
    assert product.sim.devices() == []
    assert product.hook("a", "release", A, "destroyed") == (0, "", "")
    assert product.rows() == []


def test_r1_r2_stopped_has_released_and_persisted_before_it_answers(product: Product) -> None:
    product.hook("a", "prepare", A)
    product.hook("a", "stopped", A)
    assert product.sim.devices() == []
    assert product.rows() == []
    assert product.events()[-1] == "released"


def test_r3_r4_i6_a_failed_release_is_retained_and_tried_again(product: Product) -> None:
    product.hook("a", "prepare", A)
    product.sim.fault("write", "sys/*/remove", "EIO", times=1)
    assert product.hook("a", "stopped", A) == (0, "", "")
    assert product.rows("state") == [("retained",)]
    assert "EIO" in product.rows("reason")[0][0]
    assert product.hook("a", "release", A, "destroyed") == (0, "", "")
    assert product.rows() == []
    assert product.sim.devices() == []


def test_r5_start_releases_what_an_earlier_run_left(product: Product) -> None:
    product.hook("a", "prepare", A)
    assert product.hook("a", "prepare", A) == (0, "", "")
    assert product.rows() == [("a", "0", "assigned")]
    assert product.events() == [
        "intent to create",
        "assigned",
        "intent to release",
        "released",
        "intent to create",
        "assigned",
    ]


def test_r5_the_release_stays_persisted_when_the_start_fails_later(product: Product) -> None:
    product.hook("a", "prepare", A)
    product.sim.fault("write", "sys/*/create", "EIO")
    answer = product.hook("a", "prepare", A)
    assert answer.status == 1
    assert "EIO" in answer.err
    assert product.rows() == []
    assert product.sim.devices() == []


def test_r6_a_device_in_use_is_kept(product: Product) -> None:
    product.hook("a", "prepare", A)
    pid = product.sim.hold(DEVICE)
    assert product.hook("a", "stopped", A) == (0, "", "")
    assert product.sim.devices() == [DEVICE]
    assert f"in use by qemu-system-x86 (pid {pid}" in product.rows("reason")[0][0]
    assert product.sim.writes("sys/*/remove") == []
    product.sim.drop(pid)
    product.hook("a", "release", A)
    assert product.rows() == []


def test_r6_i2_unreadable_handles_count_as_in_use(product: Product) -> None:
    product.hook("a", "prepare", A)
    product.sim.add_process(77, "other", "/dev/null")
    product.sim.fault("read", "proc/77/fd", "EACCES")
    product.hook("a", "stopped", A)
    assert product.sim.devices() == [DEVICE]
    assert "can't tell who uses it" in product.rows("reason")[0][0]


def test_r6_a_device_that_is_not_what_was_made_is_kept(product: Product) -> None:
    product.hook("a", "prepare", A)
    product.query("UPDATE assignment SET type = 'mtty-2'")
    product.hook("a", "stopped", A)
    assert product.sim.devices() == [DEVICE]
    assert "it is mtty-1 on mtty, not mtty-2" in product.rows("reason")[0][0]


def test_r8_i1_a_fork_is_refused_and_its_parent_untouched(product: Product) -> None:
    clone = domain_xml("clone", {"0": "mtty-1"}, hostdevs=[hostdev(DEVICE)])
    product.hook("a", "prepare", A)
    pid = product.sim.hold(DEVICE)
    product.sim.reset_writes()
    answer = product.hook("clone", "prepare", clone)
    assert answer.status == 1
    assert "'clone'" in answer.err
    assert DEVICE in answer.err
    assert "'a'" in answer.err
    assert "run: vgpu-hook attach --profile mtty-1 --slot 0 clone" in answer.err
    assert len(answer.err.splitlines()) == 1
    for operation in ("stopped", "release"):
        assert product.hook("clone", operation, clone) == (0, "", "")
    assert product.sim.writes() == []
    assert product.rows() == [("a", "0", "assigned")]
    product.sim.drop(pid)


def test_r8_i1_a_fork_without_its_request_is_refused_too(product: Product) -> None:
    clone = domain_xml("clone", hostdevs=[hostdev(DEVICE)])
    product.hook("a", "prepare", A)
    answer = product.hook("clone", "prepare", clone)
    assert answer.status == 1
    assert "belongs to domain 'a'" in answer.err
    product.hook("clone", "stopped", clone)
    assert product.sim.devices() == [DEVICE]


def test_r11_the_second_vgpu_fails_and_the_first_is_given_back(product: Product) -> None:
    two = domain_xml("two", {"0": "mtty-1", "1": "mtty-2"})
    product.sim.fault("write", "sys/*/mtty-2/create", "EIO")
    answer = product.hook("two", "prepare", two)
    assert answer.status == 1
    assert "slot '1'" in answer.err
    assert product.sim.devices() == []
    assert product.rows() == []
    for operation in ("stopped", "release"):
        assert product.hook("two", operation, two) == (0, "", "")


def test_r11_gives_back_only_what_this_start_took(product: Product) -> None:
    product.hook("a", "prepare", A)
    two = domain_xml("two", {"0": "mtty-1", "1": "nothing-like-it"})
    assert product.hook("two", "prepare", two).status == 1
    assert product.sim.devices() == [DEVICE]
    assert product.rows() == [("a", "0", "assigned")]


def test_i9_a_record_of_another_boot_proves_nothing(product: Product) -> None:
    product.hook("a", "prepare", A)
    product.sim.reboot()
    product.sim.make(DEVICE, "mtty", "mtty-1")
    product.hook("a", "stopped", A)
    assert product.sim.devices() == [DEVICE]
    assert "another boot" in product.rows("reason")[0][0]


def test_after_a_reboot_start_makes_the_same_device(product: Product) -> None:
    product.hook("a", "prepare", A)
    product.sim.reboot()
    assert product.hook("a", "prepare", A) == (0, "", "")
    assert product.sim.devices() == [DEVICE]
    assert product.rows() == [("a", "0", "assigned")]


def test_explain_tells_one_domains_history_in_its_order(product: Product) -> None:
    other = domain_xml("other", {"0": "mtty-1"})
    for operation in ("prepare", "stopped"):
        product.hook("a", operation, A)
        product.hook("other", operation, other)
    for subject in ("a", uuid_of("a"), DEVICE):
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


def test_i3_a_remove_that_never_returns_is_given_up_on(product: Product) -> None:
    product.hook("a", "prepare", A)
    product.configure(deadline=2)
    product.sim.fault("write", "sys/*/remove", "hang")
    assert product.hook("a", "stopped", A) == (0, "", "")
    assert product.rows("state") == [("retained",)]
    assert "has not returned within" in product.rows("reason")[0][0]
    assert product.hook("a", "release", A) == (0, "", "")
    product.sim.heal()


def test_i3_a_create_that_never_returns_refuses_the_start(product: Product) -> None:
    product.configure(deadline=2)
    product.sim.fault("write", "sys/*/create", "hang")
    answer = product.hook("a", "prepare", A)
    assert answer.status == 1
    assert "has not returned within" in answer.err
    assert product.rows("state") == [("retained",)]
    product.sim.heal()


def test_i3_a_kernel_file_that_never_answers_a_read_refuses_the_start(product: Product) -> None:
    product.configure(deadline=2)
    product.sim.fault("read", "sys/*/available_instances", "hang")
    answer = product.hook("a", "prepare", A)
    assert answer.status == 1
    assert "has not returned within" in answer.err
    product.sim.heal()
