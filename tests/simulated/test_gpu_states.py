"""What `profiles` says of each kind of card, and what a start on it is told."""

from __future__ import annotations

from typing import Any

import pytest

from tests.domains import domain_xml, pci_hostdev
from tests.product import Product
from vgpu_hook import config, metrics
from vgpu_hook.bounded import Deadline
from vgpu_hook.host import Host

V4, V5 = "0000:41:00.4", "0000:41:00.5"


def on(host: str, *values: object) -> Any:
    """A parameter that runs on this simulated host."""
    return pytest.param(*values, marks=pytest.mark.simhost(host), id=host)


def gpu(product: Product) -> dict[str, Any]:
    found: dict[str, Any] = product.json("profiles")["gpus"][0]
    return found


@pytest.mark.parametrize(
    ("state", "why"),
    [
        on("l40s", "ok", None),
        on("mig-h200", "mig", None),
        on("mig-no-instances", "no-instances", "GPU instances first; run: nvidia-smi mig"),
        on(
            "vfs-off",
            "vfs-off",
            "its 32 VFs are off; run: /usr/lib/nvidia/sriov-manage -e 0000:41:00.0",
        ),
        on("nvidia-driver-missing", "driver-missing", "it is bound to no driver"),
        on("passthrough", "passthrough", "it is bound to vfio-pci"),
        on("t4-unsupported", "unsupported", "neither mdev types nor SR-IOV VFs on this kernel"),
        on("xe", "unsupported", "plain SR-IOV VFs of driver xe are not supported"),
        on("gim", "unsupported", "plain SR-IOV VFs of driver gim are not supported"),
        on("l40s-full", "full", None),
        on("vf-unreadable", "ok", "Input/output error"),
        on("nvidia-t4", "ok", None),
    ],
)
def test_profiles_tells_the_states_of_cards_apart(
    product: Product, state: str, why: str | None
) -> None:
    found = gpu(product)
    assert found["state"] == state
    assert (why or "") in (found["why"] or "")
    assert (found["why"] is None) == (why is None)
    assert product.sim.writes() == []
    text = product.command("profiles").out
    assert state in text


@pytest.mark.parametrize(
    "why",
    [
        on(
            "vfs-off",
            "0000:41:00.0: its 32 VFs are off; run: /usr/lib/nvidia/sriov-manage -e 0000:41:00.0",
        ),
        on("xe", "0000:03:00.0: plain SR-IOV VFs of driver xe are not supported"),
    ],
)
def test_r13_a_start_on_a_host_without_vgpus_is_told_why(product: Product, why: str) -> None:
    answer = product.hook("a", "prepare", domain_xml("a", {"0": "NVIDIA L40S-2Q"}))
    assert answer.status == 1
    assert f"this host has no device that offers vGPUs; {why}" in answer.err
    xml = domain_xml("b", {"0": "NVIDIA L40S-2Q"}, hostdevs=[pci_hostdev("0000:03:00.1")])
    assert product.hook("b", "prepare", xml).status == 1
    assert product.sim.writes() == []


@pytest.mark.simhost("not-for-vgpus")
def test_a_gpu_for_passthrough_is_nothing_that_the_metrics_alert_of(product: Product) -> None:
    """VgpuHookGpuUnusable fires for each GPU whose vgpu_hook_gpu_usable is 0."""
    assert usable(product) == {"0000:41:00.0": 1, "0000:61:00.0": 0}
    product.configure(extra='[gpu."0000:61:00.0"]\nuse = false')
    assert usable(product) == {"0000:41:00.0": 1}


def usable(product: Product) -> dict[str, float]:
    settings = config.load({"VGPU_HOOK_CONFIG": str(product.config)})
    samples = metrics.of_host(Host(settings, "").parents(Deadline(60)), [], [])
    return {dict(s.labels)["gpu"]: s.value for s in samples if s.family == "vgpu_hook_gpu_usable"}


@pytest.mark.simhost("l40s-full")
def test_free_looking_vfs_of_a_full_card_are_no_capacity(product: Product) -> None:
    """peers.md row 75: VFs are listed though nothing fits on them."""
    assert {profile["free"] for profile in product.json("profiles")["profiles"]} == {0}


@pytest.mark.parametrize(
    ("stranded", "free"),
    [
        on("l40s", 49152 - 1024 - 49152 // 2 - 16384 - 6144 - 1024, 48128),
        on("l40s-same-type", 48128 - 7 * 1024, 48128),
    ],
)
def test_stranded_framebuffer_is_what_no_type_that_fits_could_use(
    product: Product, stranded: int, free: int
) -> None:
    """One vGPU of 1 GiB on a card of 48: what seven more VFs could take of the rest."""
    small = domain_xml("a", {"0": "NVIDIA L40S-1B"}, hostdevs=[pci_hostdev(V4)])
    assert product.hook("a", "prepare", small) == (0, "", "")
    found = gpu(product)
    assert (found["total"], found["used"], found["free"]) == (49152, 1024, free)
    assert found["stranded"] == stranded


@pytest.mark.simhost("l40s-same-type")
def test_a_card_of_one_type_says_which_holds_it(product: Product) -> None:
    first = domain_xml("a", {"0": "NVIDIA L40S-2Q"}, hostdevs=[pci_hostdev(V4)])
    assert product.hook("a", "prepare", first) == (0, "", "")
    other = domain_xml("b", {"0": "NVIDIA L40S-1B"}, hostdevs=[pci_hostdev(V5)])
    answer = product.hook("b", "prepare", other)
    assert answer.status == 1
    assert "none of them can be nvidia-1145 now" in answer.err
    assert f"{V4} is nvidia-1148 of domain 'a'" in answer.err
    same = domain_xml("c", {"0": "NVIDIA L40S-2Q"}, hostdevs=[pci_hostdev(V5)])
    assert product.hook("c", "prepare", same) == (0, "", "")


@pytest.mark.simhost("l40s")
def test_a_full_card_still_names_its_profiles(product: Product) -> None:
    """The driver lists nothing then: names come from the store, where they were learnt."""
    whole = domain_xml("a", {"0": "NVIDIA L40S-48Q"}, hostdevs=[pci_hostdev(V4)])
    assert product.hook("a", "prepare", whole) == (0, "", "")
    found = {p["name"]: p for p in product.json("profiles")["profiles"]}
    assert len(found) == 23
    assert found["NVIDIA L40S-48Q"]["in_use"] == 1
    assert "NVIDIA L40S-48Q" in product.command("status").out


@pytest.mark.simhost("mig-h200")
def test_the_gpu_instance_of_a_mig_vgpu_is_told(product: Product) -> None:
    xml = domain_xml("a", {"0": "NVIDIA H200X-1-18C"}, hostdevs=[pci_hostdev(V4)])
    assert product.hook("a", "prepare", xml) == (0, "", "")
    assert "(GPU instance 3, placement 0)" in product.command("explain", "a").out


@pytest.mark.simhost("mixed-mdev-vfio")
def test_both_frameworks_on_one_host(product: Product) -> None:
    assert product.hook("m", "prepare", domain_xml("m", {"0": "mtty-1"})) == (0, "", "")
    vf = domain_xml("v", {"0": "NVIDIA L40S-2Q"}, hostdevs=[pci_hostdev(V4)])
    assert product.hook("v", "prepare", vf) == (0, "", "")
    assert sorted(product.rows("framework")) == [("mdev",), ("vendor-vfio",)]
    gpus = product.json("status")["gpus"]
    assert {found["framework"] for found in gpus} == {"mdev", "vendor-vfio"}


@pytest.mark.simhost("l40s")
def test_a_broken_store_does_not_keep_profiles_from_answering(product: Product) -> None:
    product.state.mkdir()
    (product.state / "store.db").write_bytes(b"no database")
    answer = product.command("profiles")
    assert answer.status == 0
    assert "NVIDIA L40S-48Q" in answer.out
    assert "warning: store" in answer.err
