"""Vendor-specific VFIO through the real hook, on simulated cards: what is not alike under mdev.

The life cycle that both frameworks share is in test_start_stop.py.
"""

from __future__ import annotations

import pytest

from tests.domains import domain_xml, pci_hostdev, uuid_of
from tests.product import Answer, Product

pytestmark = pytest.mark.simhost("l40s")

V4, V5, V6 = "0000:41:00.4", "0000:41:00.5", "0000:41:00.6"
Q2, Q48 = 1148, 1156
TYPE = "sys/*/current_vgpu_type"


def xml(
    name: str,
    vf: str,
    profile: str = "NVIDIA L40S-2Q",
    attributes: str = "",
    of: str | None = None,
) -> bytes:
    """A domain that asks for a vGPU, with a VF that was chosen for it, or for the domain `of`."""
    return domain_xml(
        name,
        {"0": profile},
        hostdevs=[pci_hostdev(vf)],
        attributes=attributes,
        owner=uuid_of(of or name),
    )


def start(product: Product, name: str, vf: str = V4, profile: str = "1148") -> Answer:
    return product.hook(name, "prepare", xml(name, vf, profile))


def stop(product: Product, name: str, vf: str = V4) -> Answer:
    return product.hook(name, "stopped", xml(name, vf))


def types(product: Product) -> dict[str, int]:
    return product.sim.current_types()


def reasons(product: Product) -> list[str]:
    return [row[0] for row in product.rows("reason")]


@pytest.mark.parametrize("profile", ["1148", "nvidia-1148", "nvidia l40s-2q"])
def test_a_profile_is_named_as_under_mdev(product: Product, profile: str) -> None:
    assert product.hook("a", "prepare", xml("a", V4, profile)) == (0, "", "")
    assert types(product) == {V4: Q2}
    assert product.rows("framework, device, parent, type") == [
        ("vendor-vfio", V4, V4, "nvidia-1148")
    ]


@pytest.mark.parametrize(
    ("host", "vf", "profile", "number"),
    [
        pytest.param(*values, marks=pytest.mark.simhost(values[0]), id=values[0])
        for values in (
            ("no-header", V4, "1148", Q2),
            ("pf-with-nvidia", V4, "1148", Q2),
            ("vf-domain-0001", "0001:41:00.4", "1148", Q2),
            ("l40s-cdev", V4, "1148", Q2),
        )
    ],
)
def test_e2_quirks_of_hosts(
    product: Product, host: str, vf: str, profile: str, number: int
) -> None:
    assert start(product, "a", vf, profile) == (0, "", "")
    assert types(product) == {vf: number}
    assert stop(product, "a", vf) == (0, "", "")
    assert types(product) == {}
    assert product.rows() == []


def test_params_are_written_with_their_newline(product: Product) -> None:
    asked = xml("a", V4, attributes="params='frame_rate_limiter=0'")
    assert product.hook("a", "prepare", asked) == (0, "", "")
    written = [w.data for w in product.sim.writes("sys/*/vgpu_params")]
    assert written == ["frame_rate_limiter=0\n"]
    assert product.sim.state()["vfs"][V4]["params"] == "frame_rate_limiter=0"


def test_a_write_that_is_ignored_is_seen_and_another_vf_named(product: Product) -> None:
    product.sim.fault("write", f"*{V4}*current_vgpu_type", "ignore")
    answer = start(product, "a")
    assert answer.status == 1
    assert "took the type 1148, but reads back none" in answer.err
    assert "another VF is free" in answer.err
    assert types(product) == {}
    assert product.rows() == []


def test_a_read_back_that_differs_is_rolled_back_and_refused(product: Product) -> None:
    product.sim.fault("write", TYPE, "instead:1145", data="1148")
    answer = start(product, "a")
    assert answer.status == 1
    assert f"{V4} was to be nvidia-1148, but is nvidia-1145" in answer.err
    assert types(product) == {}
    assert product.rows() == []
    assert "read back" in product.events()


def test_a_read_back_that_differs_and_is_in_use_is_kept(product: Product) -> None:
    product.sim.fault("write", TYPE, "instead:1145", data="1148")
    group = product.sim.state()["vfs"][V4]["group"]
    product.sim.add_process(4000, "somebody", f"/dev/vfio/{group}")
    assert start(product, "a").status == 1
    assert types(product) == {V4: 1145}
    assert "in use by" in reasons(product)[0]


def test_r12_a_late_release_never_clears_what_a_later_start_made(product: Product) -> None:
    start(product, "a")
    stop(product, "a")
    start(product, "b")
    product.sim.reset_writes()
    assert stop(product, "a") == (0, "", "")
    assert product.hook("a", "release", xml("a", V4), "destroyed") == (0, "", "")
    assert product.sim.writes() == []
    assert types(product) == {V4: Q2}
    assert product.rows() == [("b", "0", "assigned")]


def test_r12_a_retained_vf_is_given_to_nobody_else(product: Product) -> None:
    start(product, "b")
    stop(product, "b")
    start(product, "a")
    pid = product.sim.hold(V4)
    stop(product, "a")
    answer = start(product, "b")
    assert answer.status == 1
    assert f"{V4} could not be released by domain 'a'" in answer.err
    product.sim.drop(pid)
    product.hook("a", "release", xml("a", V4))
    assert start(product, "b") == (0, "", "")


def test_a_reset_is_tried_again_while_the_driver_cleans_up(product: Product) -> None:
    start(product, "a")
    product.sim.fault("write", TYPE, "EBUSY", times=3, data="0")
    assert stop(product, "a") == (0, "", "")
    assert types(product) == {}
    assert product.rows() == []


def test_r3_a_reset_that_fails_is_retained_and_others_go_on(product: Product) -> None:
    start(product, "a")
    product.sim.fault("write", f"*{V4}*current_vgpu_type", "EIO", data="0")
    assert stop(product, "a") == (0, "", "")
    assert product.rows("state") == [("retained",)]
    assert "EIO" in reasons(product)[0]
    assert start(product, "b", V5) == (0, "", "")


def test_dirty_a_vf_with_an_unknown_type_is_left_alone(product: Product) -> None:
    product.sim.assign(V4, Q48)
    answer = start(product, "a")
    assert answer.status == 1
    assert f"{V4} carries nvidia-1156, which is not on record" in answer.err
    assert product.sim.writes() == []
    stop(product, "a")
    product.command("reconcile")
    assert types(product) == {V4: Q48}


def test_capacity_the_refusal_says_what_holds_it(product: Product) -> None:
    start(product, "b", V4)
    stop(product, "b", V4)
    assert start(product, "big", V4, "NVIDIA L40S-48Q") == (0, "", "")
    answer = start(product, "a", V5)
    assert answer.status == 1
    assert "no free instance of profile '1148'" in answer.err
    assert f"{V4} is nvidia-1156 of domain 'big'" in answer.err
    taken = start(product, "b", V4)
    assert f"{V4} is in use by domain 'big'; no free instance" in taken.err


def test_two_starts_on_one_vf_have_one_winner(product: Product) -> None:
    calls = [product.popen(name, "prepare", xml(name, V4)) for name in "abcd"]
    statuses = [process.wait(120) for process in calls]
    assert sorted(statuses) == [0, 1, 1, 1]
    assert len(product.rows()) == 1
    assert types(product) == {V4: Q2}


def test_managed_yes_is_refused_with_the_remedy(product: Product) -> None:
    hostdev = pci_hostdev(V4, managed="yes")
    answer = product.hook("a", "prepare", domain_xml("a", {"0": "1148"}, hostdevs=[hostdev]))
    assert answer.status == 1
    assert "managed='yes'" in answer.err
    assert "run: vgpu-hook attach" in answer.err
    assert types(product) == {}


def test_r14_a_vf_without_a_request_is_none_of_our_business(product: Product) -> None:
    plain = domain_xml("plain", hostdevs=[pci_hostdev(V4, None, "yes")])
    for operation in ("prepare", "stopped", "release"):
        assert product.hook("plain", operation, plain) == (0, "", "")
    assert product.sim.writes() == []


def test_r8_a_fork_of_a_running_domain_is_refused_and_touches_nothing(product: Product) -> None:
    start(product, "parent")
    product.sim.reset_writes()
    fork = xml("fork", V4, of="parent")
    answer = product.hook("fork", "prepare", fork)
    assert answer.status == 1
    assert f"has inherited {V4} of domain 'parent'" in answer.err
    for operation in ("stopped", "release"):
        assert product.hook("fork", operation, fork) == (0, "", "")
    assert product.sim.writes() == []
    assert product.rows() == [("parent", "0", "assigned")]


@pytest.mark.parametrize("policy", ["none", "refuse"])
def test_r8_a_fork_that_may_not_start_does_not_on_a_free_vf_either(
    product: Product, policy: str
) -> None:
    start(product, "parent")
    stop(product, "parent")
    fork = xml("fork", V4, attributes=f"fork='{policy}'", of="parent")
    answer = product.hook("fork", "prepare", fork)
    assert answer.status == 1
    assert f"has inherited {V4}" in answer.err
    assert types(product) == {}


def test_i9_a_record_of_another_boot_says_nothing_of_the_vf(product: Product) -> None:
    start(product, "a")
    product.sim.reboot()
    product.sim.assign(V4, Q48)  # somebody else's, in this boot
    product.sim.reset_writes()
    assert stop(product, "a") == (0, "", "")
    assert product.rows() == []
    assert product.sim.writes() == []
    assert types(product) == {V4: Q48}


def test_i9_a_record_of_another_boot_does_not_block_others(product: Product) -> None:
    start(product, "a")
    product.sim.reboot()
    assert start(product, "b") == (0, "", "")
    assert product.rows() == [("b", "0", "assigned")]


def test_an_unreadable_vf_does_not_blank_the_others(product: Product) -> None:
    product.sim.fault("read", f"*{V4}*current_vgpu_type", "EIO")
    refused = start(product, "a", V4)
    assert refused.status == 1
    assert f"{V4} can't be read" in refused.err
    assert "another VF is free" in refused.err
    assert start(product, "b", V5) == (0, "", "")
    status = product.command("status")
    assert status.status == 0
    assert f"{V4} is left out" in status.err
    assert V5 in status.out


def test_a_hanging_vf_does_not_hide_the_others(product: Product) -> None:
    product.configure(deadline=8)
    product.sim.fault("read", f"*{V4}*creatable_vgpu_types", "hang")
    found = product.json("status")
    problems = [p["name"] for gpu in found["gpus"] for p in gpu["parents"] if p["problem"]]
    assert problems == [V4]
    product.sim.heal()


def test_a_write_that_hangs_keeps_everybody_from_the_vf(product: Product) -> None:
    """It may yet be done: whoever came after would lose the type that it was given (R12)."""
    start(product, "a")
    product.configure(deadline=3)
    product.sim.fault("write", TYPE, "hang", data="0", times=1)
    assert stop(product, "a") == (0, "", "")
    assert product.rows("state") == [("retained",)]
    product.configure()
    product.hook("a", "release", xml("a", V4))
    assert "another process is at work on" in reasons(product)[0]
    assert start(product, "b").status == 1
    product.sim.heal()
    product.wait_for("the kernel has answered", lambda: types(product) == {})
    product.hook("a", "release", xml("a", V4))
    assert product.rows() == []
    assert start(product, "b") == (0, "", "")


def test_quarantine_after_failures_for_two_assignments(product: Product) -> None:
    fault = f"*{V4}*current_vgpu_type"
    product.sim.fault("write", fault, "EIO")
    assert start(product, "a").status == 1
    assert product.json("quarantine")["quarantine"] == []
    assert start(product, "a").status == 1
    assert product.json("quarantine")["quarantine"] == []
    answer = start(product, "b")
    assert answer.status == 1
    assert "EIO" in answer.err
    aside = product.json("status")["quarantine"]
    assert {(f["device"], f["doing"], f["domain_name"]) for f in aside} == {
        (V4, "create", "a"),
        (V4, "create", "b"),
    }
    assert V4 in product.command("status").out
    product.sim.heal()
    cleared = product.command("quarantine", "--clear", V4)
    assert cleared.out == f"{V4} may be used again.\n"
    assert product.json("quarantine")["quarantine"] == []
    assert product.command("quarantine", "--clear", V4).status == 1


def test_a_success_ends_the_quarantine(product: Product) -> None:
    product.sim.fault("write", f"*{V4}*current_vgpu_type", "EIO")
    start(product, "a")
    start(product, "b")
    product.sim.heal()
    assert start(product, "c") == (0, "", "")
    assert product.json("quarantine")["quarantine"] == []


def test_a_lack_of_room_is_no_fault_of_the_vf(product: Product) -> None:
    start(product, "big", V4, "NVIDIA L40S-48Q")
    for name in ("a", "b"):
        assert start(product, name, V5).status == 1
    assert product.query("SELECT count(*) FROM failure") == [(0,)]
    assert product.sim.writes(f"*{V5}*") == []


def test_a_type_that_a_sibling_has_just_taken_is_no_fault_either(product: Product) -> None:
    """EIO for a type that is not in the list any more is the driver's word for no room."""
    product.sim.fault("write", f"*{V5}*current_vgpu_type", "slow:1")
    late = product.popen("late", "prepare", xml("late", V5, "NVIDIA L40S-48Q"))
    product.wait_for("it is at its write", lambda: product.rows("state") == [("creating",)])
    product.sim.assign(V4, Q2)
    assert late.wait(120) == 1
    assert product.query("SELECT count(*) FROM failure") == [(0,)]


def test_r8_a_domain_whose_vf_was_another_s_before_is_no_fork(product: Product) -> None:
    """VFs are shared by definitions: an address proves nothing about where the XML came from."""
    start(product, "other")
    stop(product, "other")
    own = xml("own", V4, attributes="fork='refuse'")
    assert product.hook("own", "prepare", own) == (0, "", "")


def test_params_that_the_driver_refuses_are_no_fault_of_the_vf(product: Product) -> None:
    product.sim.fault("write", "*vgpu_params", "EINVAL")
    for name in ("a", "b"):
        asked = xml(name, V4, attributes="params='nonsense=1'")
        answer = product.hook(name, "prepare", asked)
        assert answer.status == 1
        assert "vgpu_params: Invalid argument (EINVAL)" in answer.err
        assert types(product) == {}
    assert product.query("SELECT count(*) FROM failure") == [(0,)]


def test_a_vf_that_can_not_be_reset_does_not_keep_its_domain_from_another(
    product: Product,
) -> None:
    start(product, "a")
    product.sim.fault("write", f"*{V4}*current_vgpu_type", "EIO", data="0")
    stop(product, "a")
    assert product.rows("state") == [("retained",)]
    assert start(product, "a").status == 1
    assert start(product, "a", V5) == (0, "", "")
    assert sorted(product.rows("device, state")) == [(V4, "retained"), (V5, "assigned")]
    product.sim.heal()
    stop(product, "a", V5)
    assert product.rows("device, state, reason") == []
    assert types(product) == {}


def test_a_start_reads_its_own_vf_and_no_other(product: Product) -> None:
    product.sim.reset_reads()
    assert start(product, "a") == (0, "", "")
    read = {path for path in product.sim.reads() if "nvidia/" in path}
    assert read
    assert all(V4 in path for path in read)


def test_two_slots_of_one_domain_on_one_vf_are_refused(product: Product) -> None:
    hostdevs = [pci_hostdev(V4, "0"), pci_hostdev(V4, "1")]
    twice = domain_xml("a", {"0": "1148", "1": "1148"}, hostdevs=hostdevs)
    answer = product.hook("a", "prepare", twice)
    assert answer.status == 1
    assert f"(slot '1'): {V4} is in use by domain 'a'" in answer.err
    assert types(product) == {}


def test_a_gpu_that_is_left_out_is_not_even_read(product: Product) -> None:
    product.configure(extra="[gpu.'00000000:41:00.0']\nuse = false")
    product.sim.reset_reads()
    answer = start(product, "a")
    assert answer.status == 1
    assert "the configuration leaves this GPU out" in answer.err
    assert not [path for path in product.sim.reads() if "creatable" in path]
    assert product.json("status")["gpus"] == []


@pytest.mark.parametrize("gpu", ["0000:41:00.0", "41:00.0", "00000000:41:00.0"])
def test_a_gpu_is_named_as_people_know_it(product: Product, gpu: str) -> None:
    pinned = xml("a", V4, attributes=f"gpu='{gpu}'")
    assert product.hook("a", "prepare", pinned) == (0, "", "")


def test_a_vf_that_hangs_is_named_and_so_is_the_way_out(product: Product) -> None:
    product.configure(deadline=12)
    product.sim.fault("read", f"*{V4}*current_vgpu_type", "hang")
    answer = start(product, "a")
    assert answer.status == 1
    assert f"{V4} can't be read" in answer.err
    assert "another VF is free" in answer.err
    product.sim.heal()


def test_the_only_free_vf_is_not_offered_if_the_other_slot_names_it(product: Product) -> None:
    for vf in (V6, "0000:41:00.7", *(f"0000:41:01.{n}" for n in range(4))):
        product.sim.assign(vf, 1145)
    start(product, "b", V4)
    hostdevs = [pci_hostdev(V4, "0"), pci_hostdev(V5, "1")]
    twice = domain_xml("a", {"0": "1148", "1": "1148"}, hostdevs=hostdevs)
    answer = product.hook("a", "prepare", twice)
    assert answer.status == 1
    assert "another VF is free" not in answer.err
