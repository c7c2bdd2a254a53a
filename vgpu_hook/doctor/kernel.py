"""The kernel's side: drivers, IOMMU, VFs, and what state each GPU is in.

What a GPU offers is asked of the frameworks, as a start does; modules are looked for only where
nothing is offered, to say why: what is loaded tells nothing on a host that works.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from vgpu_hook import report as reports
from vgpu_hook import sysfs
from vgpu_hook.doctor.findings import Finding, Report, Situation, run
from vgpu_hook.frameworks.gpus import GPU_CLASSES, NVIDIA, PASSTHROUGH, SRIOV_MANAGE
from vgpu_hook.model import MDEV, VENDOR_VFIO, Parent
from vgpu_hook.sysfs import Roots

INTEL = "0x8086"

DRIVER = "install NVIDIA's vGPU host driver (not the graphics driver), then: lsmod | grep nvidia"
FIXES = {
    "driver-missing": DRIVER,
    "no-instances": "run: nvidia-smi mig -lgi; make GPU instances: nvidia-smi mig -cgi PROFILE -C",
    "unreadable": "run: dmesg; then vgpu-hook profiles",
}
OFFERS = {
    "ok": "it offers vGPUs",
    "mig": "it offers slices of its GPU instances (MIG)",
    "full": "all that it can offer is in use",
}
"""States (report.gpu_states) in which nothing is wrong."""

NOT_OURS = ("unsupported", "passthrough")
LEFT_OUT = 'leave it out: [gpu."{gpu}"] use = false in vgpu-hook.toml'


def check(situation: Situation) -> list[Finding]:
    """Look at each GPU, and why there is none."""
    report = Report("gpus")
    parents, roots = situation.parents, situation.settings.roots
    if parents is None:
        return report.findings  # said already
    states = reports.gpu_states(parents)
    offered = any(card["state"] in OFFERS for card in states)
    for card in states:
        _state(report, card, offered=offered)
    for parent in parents:
        if parent.problem and not parent.state:
            fix = f"run: dmesg | grep {parent.name}"
            report.warning(parent.name, f"it is left out: {parent.problem}", fix)
    if not any(not parent.state for parent in parents):
        _nothing(report, roots)
    report.check = "modules"
    _modules(report, roots, parents)
    report.check = "iommu"
    _iommu(report, roots, [p for p in parents if p.framework == VENDOR_VFIO and not p.state])
    return report.findings


def _state(report: Report, card: reports.Value, *, offered: bool) -> None:
    """Say what state a GPU is in. `offered`: some GPU has vGPUs, so the others may be for else."""
    gpu, state, why = card["gpu"], card["state"], card["why"] or ""
    if state in OFFERS:
        stranded = card["stranded"] or 0
        left = f"; {stranded} MiB are free that no type can use now" if stranded else ""
        report.ok(gpu, f"{OFFERS[state]}{left}")
    elif state in NOT_OURS or (state == "driver-missing" and offered):
        report.warning(gpu, f"it can't be used for vGPUs: {why}", LEFT_OUT.format(gpu=gpu))
    elif state == "vfs-off":
        fix = f"run: {SRIOV_MANAGE} -e {gpu}; at each boot: [boot] commands in vgpu-hook.toml"
        report.error(gpu, why.partition("; run:")[0], fix)
    else:
        report.error(gpu, why.partition("; run:")[0] or state, FIXES.get(state, "run: dmesg"))


def _nothing(report: Report, roots: Roots) -> None:
    """Say what is in the way of there being any vGPU."""
    gpus = set(_gpus(roots))
    text = "it has no device that offers vGPUs"
    if (INTEL, "i915") in gpus:
        fix = "run: modprobe kvmgt; at each boot: i915.enable_gvt=1 on the kernel's command line"
        report.error("this host", f"{text}: i915 runs without GVT-g", fix)
    elif any(vendor == NVIDIA and driver not in PASSTHROUGH for vendor, driver in gpus):
        report.error("this host", f"{text}: NVIDIA's GPUs offer none yet", DRIVER)
    elif any(vendor == NVIDIA for vendor, _ in gpus):
        fix = "a GPU that VMs are to share must be on NVIDIA's vGPU driver: lspci -nnk -d 10de:"
        report.error("this host", f"{text}: NVIDIA's GPUs are all given to VMs as a whole", fix)
    else:
        report.error("this host", text, "is there a GPU? run: lspci -nnk")


def _gpus(roots: Roots) -> Iterable[tuple[str, str]]:
    """Return the vendor and the driver of each GPU that is there."""
    devices = os.path.join(roots.sysfs, "bus/pci/devices")
    for address in sysfs.entries(devices):
        path = os.path.join(devices, address)
        if (sysfs.read_text(os.path.join(path, "class")) or "").startswith(GPU_CLASSES):
            driver = os.path.basename(sysfs.link_target(os.path.join(path, "driver")) or "")
            yield sysfs.read_text(os.path.join(path, "vendor")) or "", driver


def _modules(report: Report, roots: Roots, parents: tuple[Parent, ...]) -> None:
    """Look for what makes a vGPU a VFIO device that QEMU can open."""
    usable = {parent.framework for parent in parents if not parent.state}
    if not usable:
        return
    if not os.path.exists(os.path.join(roots.dev, "vfio")):
        text = "it is not loaded, and without it no VM can open a vGPU"
        report.error("vfio", text, run("modprobe", "vfio-pci"))
    if MDEV in usable and _needs_vfio_mdev(roots):
        text = "it is not loaded: on this kernel it makes mediated devices VFIO devices"
        report.error("vfio_mdev", text, run("modprobe", "vfio_mdev"))


def _needs_vfio_mdev(roots: Roots) -> bool:
    """Tell of a kernel before 5.16, where a driver of that name takes the devices (facts D3)."""
    drivers = sysfs.entries(os.path.join(roots.sysfs, "bus/mdev/drivers"))
    return os.path.isdir(os.path.join(roots.sysfs, "bus/mdev")) and not drivers


def _iommu(report: Report, roots: Roots, vfs: list[Parent]) -> None:
    """VFs need the hardware's IOMMU; mediated devices have groups without one."""
    without = [vf.name for vf in vfs if not _has_group(roots, vf.name)]
    if without:
        text = f"{len(without)} of {len(vfs)} VFs have no IOMMU group ({without[0]}): no VM can"
        fix = "put intel_iommu=on (or amd_iommu=on) iommu=pt on the kernel's command line"
        report.error(
            "IOMMU", f"{text} use them", f"{fix}, switch VT-d or AMD-Vi on in the firmware"
        )
    elif vfs:
        report.ok("IOMMU", f"all {len(vfs)} VFs have an IOMMU group")


def _has_group(roots: Roots, address: str) -> bool:
    return os.path.lexists(os.path.join(roots.sysfs, "bus/pci/devices", address, "iommu_group"))
