"""`vgpu-hook check-arrival` as a process on simulated hosts: what the other side of a migration is
told.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.domains import device_of, domain_xml, hostdev, pci_hostdev, uuid_of
from tests.product import PATIENCE, Answer, Product

V4, V5, V6 = (f"0000:41:00.{n}" for n in (4, 5, 6))
YES, NO, UNKNOWN = "yes", "no", "can't tell"
Ask = Callable[..., Answer]
Told = Callable[..., tuple[list[tuple[str, str, str]], Any]]
TWO = {"0": "mtty-1", "1": "mtty-1"}

l40s = pytest.mark.simhost("l40s")


@pytest.fixture
def ask(product: Product, tmp_path: Path) -> Ask:
    """A function that gives an XML to the command, and returns its answer."""

    def run(xml: bytes, *options: str) -> Answer:
        file = tmp_path / "domain.xml"
        file.write_bytes(xml)
        before = product.sim.writes()
        answer = product.command("check-arrival", *options, str(file))
        assert product.sim.writes() == before
        assert "Traceback" not in answer.err
        assert len(answer.err.splitlines()) <= 1
        return answer

    return run


@pytest.fixture
def told(ask: Ask) -> Told:
    """A function that gives an XML to the command, and returns the findings, and the JSON."""

    def run(xml: bytes, *options: str) -> tuple[list[tuple[str, str, str]], Any]:
        answer = ask(xml, "--format", "json", *options)
        said = json.loads(answer.out)
        found = [(row["what"], row["good"], row["text"]) for row in said["findings"]]
        assert answer.status == (1 if NO in [good for _, good, _ in found] else 0)
        assert answer.err.startswith("error: ") == bool(answer.status)
        return found, said

    return run


def vfs(name: str, *profiles: str) -> bytes:
    """A domain of another host, whose VFs this one does not have, in slots 0, 1, ..."""
    asked = {str(slot): profile for slot, profile in enumerate(profiles)}
    hostdevs = [pci_hostdev(f"0000:e1:00.{int(slot)}", slot) for slot in asked]
    return domain_xml(name, asked, hostdevs=hostdevs, owner=uuid_of(name))


def goods(findings: list[tuple[str, str, str]]) -> list[str]:
    return [good for _, good, _ in findings]


def fill(product: Product) -> None:
    """Take all of mtty, whose 24 ports a VM can have at the most 16 of."""
    for name, count in (("one", 16), ("other", 8)):
        asked = {str(slot): "mtty-1" for slot in range(count)}
        assert product.hook(name, "prepare", domain_xml(name, asked)) == (0, "", "")


def test_there_is_room(product: Product, ask: Ask, told: Told) -> None:
    xml = domain_xml("a", {"0": "mtty-1"})
    findings, said = told(xml)
    assert findings == [("vGPU 0", YES, "mtty-1 (mtty-1) on mtty, 24 free")]
    assert said["hostdevs"] == [{"slot": "0", "type": "mdev", "address": device_of(uuid_of("a"))}]
    assert said["kernel"] == os.uname().release
    assert ask(xml).out.endswith("\nDomain 'a' can.\n")
    assert product.rows() == []


def test_a_full_host(product: Product, ask: Ask, told: Told) -> None:
    fill(product)
    xml = domain_xml("a", {"0": "mtty-1"})
    (finding,), _ = told(xml)
    assert finding[:2] == ("vGPU 0", NO)
    assert "mtty has 0 of mtty-1 free" in finding[2]
    answer = ask(xml)
    assert answer.err.startswith("error: domain 'a' can't: no free instance of profile 'mtty-1'")


def test_a_stopped_vm_needs_no_room(product: Product, ask: Ask, told: Told) -> None:
    fill(product)
    xml = domain_xml("a", {"0": "mtty-1"})
    (finding,), _ = told(xml, "--stopped")
    assert finding[1] == UNKNOWN
    assert finding[2].startswith("it can come; its start would be refused now: no free instance")
    answer = ask(xml, "--stopped")
    assert answer.status == 0
    assert answer.out.endswith("\nAs far as can be told, domain 'a' can.\n")


def test_what_a_running_vm_does_not_have_it_goes_without(told: Told) -> None:
    xml = domain_xml("a", TWO, hostdevs=[hostdev(device_of(uuid_of("a")))])
    findings, said = told(xml)
    assert [row[:2] for row in findings] == [("vGPU 1", YES), ("vGPU 0", YES)]
    assert "the VM runs without it" in findings[0][2]
    assert [row["slot"] for row in said["hostdevs"]] == ["0"]
    nothing = domain_xml("a", {"0": "mtty-1"}, hostdevs=[])
    assert goods(told(nothing)[0]) == [YES]


def test_a_stopped_vm_comes_without_a_hostdev_but_could_not_start(told: Told) -> None:
    (finding,), said = told(domain_xml("a", {"0": "mtty-1"}, hostdevs=[]), "--stopped")
    assert finding[:2] == ("vGPU", UNKNOWN)
    assert finding[2].startswith("it can come; its start would be refused now: ")
    assert "has no hostdev yet" in finding[2]
    assert said["hostdevs"] == []


@pytest.mark.parametrize("options", [(), ("--stopped",)], ids=str)
@pytest.mark.parametrize(
    "xml",
    [
        domain_xml(
            "a", {"0": "mtty-1"}, hostdevs=[hostdev(uuid_of("x"))], attributes="fork='none'"
        ),
        domain_xml("a", TWO).replace(b'name="1" profile', b'name="2" profile'),
    ],
    ids=["fork", "one more"],
)
def test_what_its_start_would_refuse(xml: bytes, options: tuple[str, ...], told: Told) -> None:
    assert goods(told(xml, *options)[0]) == [UNKNOWN if options else NO]


@pytest.mark.parametrize("options", [(), ("--stopped",)], ids=str)
def test_a_profile_that_the_host_does_not_have(options: tuple[str, ...], told: Told) -> None:
    (finding,), _ = told(domain_xml("a", {"0": "nvidia-1"}), *options)
    assert finding[:2] == ("vGPU", UNKNOWN if options else NO)
    assert "profile 'nvidia-1' is not offered by any GPU" in finding[2]


def test_no_request(ask: Ask) -> None:
    xml = domain_xml("plain", hostdevs=[hostdev(uuid_of("x"), None)])
    assert ask(xml) == (0, "Domain 'plain' asks for no vGPU.\n", "")
    answer = ask(xml, "--format", "json")
    assert answer.status == 0
    assert json.loads(answer.out)["findings"] == []


@pytest.mark.parametrize("options", [(), ("--stopped",)], ids=str)
@pytest.mark.parametrize(
    "xml",
    [
        b"",
        b"<broken",
        b"<network/>",
        domain_xml("a", {"0": "mtty-1"}, attributes="colour='red'"),
        domain_xml("a", {"0": "mtty-1"}).replace(uuid_of("a").encode(), b"?"),
    ],
    ids=["empty", "broken", "network", "attribute", "no UUID"],
)
def test_xml_that_is_not_understood(
    xml: bytes, options: tuple[str, ...], ask: Ask, told: Told
) -> None:
    (finding,), _ = told(xml, *options)
    assert finding[:2] == ("XML", NO)
    answer = ask(xml, *options)
    assert answer.status == 1
    assert answer.err.startswith("error: a domain with this XML can't: ")


def test_a_file_that_is_not_there(product: Product) -> None:
    answer = product.command("check-arrival", "/nonexistent.xml")
    assert answer == (1, "", "error: /nonexistent.xml: No such file or directory\n")


@pytest.mark.parametrize("broken", ["configuration", "store"])
def test_the_hook_would_refuse(broken: str, product: Product, told: Told) -> None:
    xml = domain_xml("a", {"0": "mtty-1"})
    if broken == "store":
        product.state.mkdir()
        (product.state / "store.db").write_bytes(b"this is not a database" * 100)
    else:
        product.set_config("[deadlines]\nhook = 'soon'\n")
    (finding,), said = told(xml)
    assert finding[:2] == ("vGPU", NO)
    assert broken in finding[2]
    assert said["hostdevs"] == []
    assert goods(told(xml, "--stopped")[0]) == [UNKNOWN]


def test_without_root_it_is_no_answer(product: Product) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-m", "vgpu_hook", "check-arrival", "--format", "json", "-"],
        input=domain_xml("a", {"0": "mtty-1"}),
        env={**os.environ, "VGPU_HOOK_CONFIG": "/dev/null"},
        cwd="/",
        capture_output=True,
        timeout=PATIENCE,
        user=65534,
    )
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.startswith(b"error: check-arrival needs root")


# -- several slots ----------------------------------------------------------------------


def test_several_slots_on_one_parent_are_counted(product: Product, told: Told) -> None:
    assert goods(told(domain_xml("a", TWO))[0]) == [YES, YES]
    for name, count in (("one", 16), ("other", 7)):
        asked = {str(slot): "mtty-1" for slot in range(count)}
        assert product.hook(name, "prepare", domain_xml(name, asked)) == (0, "", "")
    findings, _ = told(domain_xml("a", TWO))
    assert goods(findings) == [YES, UNKNOWN]
    assert findings[1][2] == "mtty-1 (mtty-1) on mtty, 1 free, but perhaps not beside slot 0"


def test_slots_of_different_types_on_one_parent(told: Told) -> None:
    assert goods(told(domain_xml("a", {"0": "mtty-1", "1": "mtty-2"}))[0]) == [YES, UNKNOWN]


@pytest.mark.simhost("two-mtty-like")
def test_each_slot_finds_a_parent_of_its_own(told: Told) -> None:
    asked = {"0": "mtty-1", "1": "mtty-2", "2": "mtty-1"}
    assert goods(told(domain_xml("a", asked))[0]) == [YES, YES, UNKNOWN]


@pytest.mark.simhost("nvidia-ampere-vf")
@pytest.mark.parametrize(
    ("profiles", "expected"),
    [
        (["nvidia-558", "nvidia-558"], [YES, YES]),
        (["nvidia-565", "nvidia-565"], [YES, YES]),
        (["nvidia-566", "nvidia-566"], [YES, UNKNOWN]),
        (["nvidia-558", "nvidia-560"], [YES, UNKNOWN]),
    ],
    ids=str,
)
def test_mdevs_on_vfs_share_the_framebuffer(
    profiles: list[str],
    expected: list[str],
    told: Told,
) -> None:
    asked = {str(slot): profile for slot, profile in enumerate(profiles)}
    assert goods(told(domain_xml("a", asked))[0]) == expected


@l40s
@pytest.mark.parametrize(
    ("profiles", "expected"),
    [
        (["1148"], [YES]),
        (["1148", "1148", "1148"], [YES, YES, YES]),
        (["1155", "1155"], [YES, YES]),
        (["1154", "1154", "1154"], [YES, YES, UNKNOWN]),
        (["1156", "1156"], [YES, UNKNOWN]),
        (["1148", "1155"], [YES, UNKNOWN]),
    ],
    ids=str,
)
def test_vfs_share_the_framebuffer(
    profiles: list[str],
    expected: list[str],
    told: Told,
) -> None:
    findings, said = told(vfs("a", *profiles))
    assert goods(findings) == expected
    given = [row["address"] for row in said["hostdevs"]]
    assert len(set(given)) == len(profiles)
    assert all(vf.startswith("0000:41:") for vf in given)


@pytest.mark.simhost("l40s-two")
def test_slots_on_different_gpus(told: Told) -> None:
    assert goods(told(vfs("a", "1156", "1156"))[0]) == [YES, YES]


@pytest.mark.simhost("mig-h200")
def test_gpu_instances_are_not_counted_by_framebuffer(told: Told) -> None:
    assert goods(told(vfs("a", "1414", "1414"))[0]) == [YES, UNKNOWN]


@pytest.mark.simhost("l40s-full")
@pytest.mark.parametrize("options", [(), ("--stopped",)], ids=str)
def test_a_full_card(options: tuple[str, ...], told: Told) -> None:
    (finding,), _ = told(vfs("a", "1155"), *options)
    assert finding[:2] == ("vGPU 0", UNKNOWN if options else NO)
    assert "no free instance of profile '1155'" in finding[2]


@l40s
def test_an_mdev_becomes_a_vf_and_nothing_is_reserved(product: Product, told: Told) -> None:
    findings, said = told(domain_xml("a", {"0": "1148"}))
    assert findings == [("vGPU 0", YES, f"1148 (nvidia-1148) on {V4}")]
    assert said["hostdevs"] == [{"slot": "0", "type": "pci", "address": V4}]
    assert product.query("SELECT * FROM reservation") == []


@l40s
def test_a_vf_that_another_domain_has_is_left_out(product: Product, told: Told) -> None:
    other = domain_xml("b", {"0": "1148"}, hostdevs=[pci_hostdev(V4)], owner=uuid_of("b"))
    assert product.hook("b", "prepare", other) == (0, "", "")
    _, said = told(vfs("a", "1148", "1148"))
    assert [row["address"] for row in said["hostdevs"]] == [V5, V6]
