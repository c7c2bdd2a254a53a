"""Reports of hook scripts and of XML that was edited (docs/reports.md, rows 49 to 62)."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from lxml import etree

from tests.domains import besides_vgpus, domain_xml, pci_hostdev, uuid_of
from tests.product import HOOK, PATIENCE, REPOSITORY, Product
from tests.reports.calls import DONE, end, planned, refusal
from tests.simulated.arrivals import AWAY, PROFILE, V4, image, l40s
from tests.simulated.kinds import Kind
from vgpu_hook import domain, lint
from vgpu_hook.model import Parent

HAND_MADE = b"""
  <!-- do not touch: the licence is bound to the MAC below -->
  <description><![CDATA[ <b>two  spaces</b> & "quotes" ]]></description>
  <title>it's "odd"</title>
"""


def test_virt_manager_299_nothing_of_the_hook_keeps_its_output_open(
    product: Product, kind: Kind
) -> None:
    """libvirt waits for the end of it, and would not go on with the start (facts A9)."""
    product.configure(deadline=2)
    kind.fail_create("hang")
    call = product.popen("a", "prepare", kind.xml("a"))
    out, err = call.communicate(timeout=PATIENCE)
    # The write is under way in a process that nobody can end; that one does not hold the pipes.
    assert product.sim.writes()[-1].outcome == "blocked"
    assert (call.returncode, out) == (1, b"")
    assert b"has not returned within" in err


def test_nixpkgs_51152_the_hook_works_from_any_folder_and_under_any_name(
    product: Product, kind: Kind, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "var lib" / "hooks" / "qemu.d" / "the hook"
    elsewhere.parent.mkdir(parents=True)
    shutil.copy(HOOK, elsewhere)
    for operation, left in (("prepare", kind.vgpus("a")), ("stopped", {})):
        done = subprocess.run(
            [str(elsewhere), "a", operation, "begin", "-"],
            input=kind.xml("a"),
            env=product.environment,
            cwd="/",
            capture_output=True,
            timeout=PATIENCE,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
        assert kind.present() == left
    sources = [HOOK, *(REPOSITORY / "vgpu_hook").rglob("*.py")]
    # Only the setting that tells doctor where it is to look: the hook asks for none of it.
    setting = ("config.py", "config_file.py")
    named = [file for file in sources if "/etc/libvirt" in file.read_text()]
    assert [file for file in named if file.name not in setting] == []


def test_webvirtcloud_536_a_lock_that_can_not_be_had_stops_no_vm_without_a_vgpu(
    product: Product, kind: Kind
) -> None:
    """And one with a vGPU is told which file it is."""
    product.runtime.write_text("no folder")
    plain = domain_xml("plain")
    for operation in ("prepare", "start", "started", "stopped", "release"):
        assert product.hook("plain", operation, plain) == DONE
    told = refusal(product, "a", kind.xml("a"))
    assert f"{product.runtime}/" in told
    assert "'a'" in told
    assert kind.present() == {}
    product.runtime.unlink()
    for name in ("a", "second"):  # it was the second VM that could not start
        assert product.hook(name, "prepare", kind.xml(name)) == DONE


@pytest.mark.parametrize("way", ["planned", "migrated"])
@l40s
def test_virt_manager_723_comments_and_text_outside_of_the_vgpu_stay(
    product: Product, tmp_path: Path, way: str
) -> None:
    xml = image("a", AWAY).replace(b"<memory", HAND_MADE + b"<memory", 1)
    xml = xml.replace(b"<devices>", b"<devices><!-- mine --><?keep this?>", 1)
    if way == "planned":
        out = planned(product, tmp_path, xml)
    else:
        answer = product.hook("a", "migrate", xml)
        assert (answer.status, answer.err) == (0, "")
        out = answer.out.encode()
    assert pci_hostdev(AWAY) not in out.decode()
    assert out != xml
    assert besides_vgpus(out) == besides_vgpus(xml)
    for kept in (
        b"<!-- do not touch: the licence",
        b"<!-- mine -->",
        b"<?keep this?>",
        b"<![CDATA[",
    ):
        assert kept in out


def test_opennebula_1254_the_metadata_of_others_stays(product: Product, tmp_path: Path) -> None:
    """With a namespace of its own or without one."""
    theirs = b"<vm:id xmlns:vm='urn:one'>42</vm:id><plain at='1'>text</plain>"
    asks = domain_xml("a", {"0": "mtty-1"}, hostdevs=[])
    xml = asks.replace(b"<metadata>", b"<metadata>" + theirs)
    out = planned(product, tmp_path, xml)
    gone = domain.detach(out, "0")
    for text in (out, gone):
        metadata = etree.fromstring(text).find("metadata")
        kept = [child for child in metadata if not child.tag.startswith("{urn:vgpu-hook:")]
        assert [(child.tag, child.text) for child in kept] == [
            ("{urn:one}id", "42"),
            ("plain", "text"),
        ]
    assert b"urn:vgpu-hook:domain:1" not in gone


@pytest.mark.parametrize("managed", ["yes", "no", None])
@l40s
def test_ravada_2119_a_vf_is_never_taken_from_its_driver(
    product: Product, tmp_path: Path, managed: str | None
) -> None:
    """Refused at the start, named by lint, and put right where the definition is planned."""
    xml = domain_xml("a", {"0": PROFILE}, hostdevs=[pci_hostdev(V4, "0", managed)])
    parent = Parent("vendor-vfio", V4, "0000:41:00.0", ())
    found = lint.check([domain.parse(xml)], [parent])
    if managed == "yes":
        told = refusal(product, "a", xml)
        assert "managed='yes', with which libvirt would take the VF" in told
        assert [finding.hostdev for finding in found] == [V4]
        assert "set managed='no'" in found[0].fix
        xml = planned(product, tmp_path, xml)
        assert b'managed="no"' in xml
        assert b"yes" not in xml
    else:
        assert found == []
    assert product.hook("a", "prepare", xml) == DONE


@pytest.mark.parametrize(
    "device",
    [
        pytest.param("mdev", marks=pytest.mark.simhost("nvidia-t4"), id="mdev"),
        pytest.param(V4, marks=pytest.mark.simhost("l40s"), id="vendor-vfio"),
    ],
)
def test_vdsm_pr_92_params_end_in_a_newline(product: Product, device: str) -> None:
    """Without it the driver takes them, and does nothing."""
    params = "frame_rate_limiter=0, disable_vnc=1"
    of_vf = device == V4
    xml = domain_xml(
        "a",
        {"0": "NVIDIA L40S-2Q" if of_vf else "GRID T4-2Q"},
        hostdevs=[pci_hostdev(V4)] if of_vf else None,
        attributes=f"params='{params}'",
    )
    assert product.hook("a", "prepare", xml) == DONE
    (write,) = product.sim.writes("*/vgpu_params")
    assert (write.data, write.outcome) == (f"{params}\n", "ok")
    end(product, "a", xml, "shutdown")
    assert re.search(r"/vgpu_params$", write.path)
    assert uuid_of("a") not in write.path
