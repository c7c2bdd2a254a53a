"""Checks that the GPUs of gpu.py behave as written there: python3 -m tests.testbed.gpu_check.

For whoever changes the kernel module; a minute, so not part of `make test`.
"""

from __future__ import annotations

import sys
import time

from tests.testbed import gpu
from tests.testbed.build import ensure_image
from tests.testbed.guests import boot_disk, domain_xml, mdev_hostdev, pci_hostdev
from tests.testbed.host import IDLE_DISK, Host
from tests.testbed.machine import Machine

UUIDS = [f"4f1d1c62-9a3e-4c58-8d41-00000000000{number}" for number in range(10)]
PARAMS = "frame_rate_limiter=0\n"
BEGIN = time.monotonic()


def say(text: str) -> None:
    print(f"[{time.monotonic() - BEGIN:4.0f} s] {text}", flush=True)


def write(machine: Machine, path: str, text: str) -> str:
    """Write to a file in the machine; return the error's words, or "" if there was none."""
    done = machine.run(f"cat >{path}", input=text, check=False)
    return done.stderr.strip().rpartition(": ")[2]


def read(machine: Machine, path: str) -> str:
    """Return a file's text, or the error's words."""
    done = machine.run(["cat", path], check=False)
    return done.stdout if done.returncode == 0 else done.stderr.strip().rpartition(": ")[2]


def set_type(machine: Machine, vf: str, text: str | int) -> str:
    return write(machine, gpu.vf_file(vf, "current_vgpu_type"), str(text))


def check_files(machine: Machine, vf: str) -> None:
    """A VF's files, before and after it has a type."""
    say("files")
    creatable = read(machine, gpu.vf_file(vf, "creatable_vgpu_types"))
    assert creatable.startswith("ID    : vGPU Name\n1145  : NVIDIA L40S-1B\n1148  : NVIDIA L40S-2Q")
    for name in ("gpu_instance_id", "placement_id"):
        assert read(machine, gpu.vf_file(vf, name)) == "No such device or address"
    assert read(machine, gpu.vf_file(vf, "current_vgpu_type")) == "0\n"
    for text, error in (("x", "Invalid argument"), ("9999", "Input/output error"), ("0", "")):
        assert set_type(machine, vf, text) == error, text
    assert set_type(machine, vf, "1148\n") == ""
    assert set_type(machine, vf, "1148\n") == "Input/output error"
    assert read(machine, gpu.vf_file(vf, "current_vgpu_type")) == "1148\n"
    assert read(machine, gpu.vf_file(vf, "creatable_vgpu_types")) == "ID    : vGPU Name\n"
    assert read(machine, gpu.vf_file(vf, "placement_id")) == "0\n"
    params = gpu.vf_file(vf, "vgpu_params")
    write(machine, params, PARAMS.rstrip())
    assert read(machine, params) == ""
    write(machine, params, PARAMS)
    assert read(machine, params) == PARAMS
    assert set_type(machine, vf, 0) == ""
    assert gpu.writes(machine, vf) == 6


def check_capacity(machine: Machine, vfs: list[str]) -> None:
    """48 GiB for all VFs of a card, and the same-type switch."""
    say("capacity")
    assert set_type(machine, vfs[0], 1152) == ""  # 24 GiB
    assert set_type(machine, vfs[1], 1151) == ""  # 16 GiB
    assert set(gpu.creatable_types(machine, vfs[2])) == {1145, 1148, 1149, 1150, 2164}
    assert set_type(machine, vfs[2], 1151) == "Input/output error"
    assert set_type(machine, vfs[1], 0) == ""
    gpu.set_parameter(machine, "same_type", 1)
    assert gpu.creatable_types(machine, vfs[2]) == {1152: "NVIDIA L40S-24Q"}
    gpu.set_parameter(machine, "same_type", 0)
    assert set_type(machine, vfs[0], 0) == ""


def check_faults(machine: Machine, vf: str) -> None:
    """Each fault, and that it ends."""
    say("faults")
    eio, busy = "Input/output error", "Device or resource busy"
    refusals: list[tuple[gpu.Fault, str]] = [("reset-eio", eio), ("reset-ebusy", busy)]
    for fault, error in refusals:
        gpu.set_fault(machine, vf, fault)
        assert set_type(machine, vf, 1148) == ""
        assert set_type(machine, vf, 0) == error
        gpu.set_fault(machine, vf, "none")
        assert set_type(machine, vf, 0) == ""
    gpu.set_fault(machine, vf, "wedged")
    assert set_type(machine, vf, 1148) == set_type(machine, vf, 0) == eio
    gpu.set_fault(machine, vf, "unreadable")
    for name in ("current_vgpu_type", "creatable_vgpu_types"):
        assert read(machine, gpu.vf_file(vf, name)) == eio
    gpu.set_fault(machine, vf, "ignore-write")
    assert set_type(machine, vf, 1148) == ""
    assert gpu.current_type(machine, vf) == 0
    gpu.set_fault(machine, vf, "wrong-type")
    assert set_type(machine, vf, 1148) == ""
    assert gpu.current_type(machine, vf) == 1145
    gpu.set_fault(machine, vf, "slow-create", milliseconds=3000)
    assert set_type(machine, vf, 0) == ""
    begin = time.monotonic()
    assert set_type(machine, vf, 1148) == ""
    assert time.monotonic() - begin > 3
    gpu.set_fault(machine, vf, "none")
    assert set_type(machine, vf, 0) == ""


def handles(host: Host, name: str) -> str:
    return host.run(f"ls -l /proc/$(cat /run/libvirt/qemu/{name}.pid)/fd").stdout


def check_guest(host: Host, vf: str) -> None:
    """libvirt starts a guest on a VF that has a type, and on no other."""
    say("a guest with a VF")
    machine = host.machine
    device = pci_hostdev(vf)
    host.define(domain_xml("vf", uuid=UUIDS[8], disk=IDLE_DISK, extra_hostdevs=[device]))
    refused = host.virsh("start", "vf", check=False)
    assert "Input/output error" in refused.stderr
    assert set_type(machine, vf, 1148) == ""
    host.virsh("start", "vf")
    assert "vfio-device" in handles(host, "vf")
    assert set_type(machine, vf, 0) == "Device or resource busy"
    host.virsh("destroy", "vf")
    assert set_type(machine, vf, 0) == ""
    assert 1153 in gpu.creatable_types(machine, vf)


def check_mdev(host: Host, parent: str) -> None:
    """One type for all of a card, no more than fit, and a guest that has one."""
    say("mediated devices")
    machine = host.machine
    types = f"/sys/class/mdev_bus/{parent}/mdev_supported_types"

    def left(name: str) -> int:
        return int(read(machine, f"{types}/nvidia-{name}/available_instances"))

    assert (left("222"), left("233")) == (16, 2)
    assert write(machine, f"{types}/nvidia-233/create", UUIDS[0]) == ""
    assert (left("222"), left("233")) == (0, 1)
    assert write(machine, f"{types}/nvidia-222/create", UUIDS[1]) == "No space left on device"
    assert write(machine, f"{types}/nvidia-233/create", UUIDS[1]) == ""
    assert write(machine, f"{types}/nvidia-233/create", UUIDS[2]) == "No space left on device"
    params = f"/sys/bus/mdev/devices/{UUIDS[0]}/nvidia/vgpu_params"
    write(machine, params, PARAMS)
    assert read(machine, params) == PARAMS
    device = mdev_hostdev(UUIDS[0])
    host.define(domain_xml("mdev", uuid=UUIDS[9], disk=IDLE_DISK, extra_hostdevs=[device]))
    host.virsh("start", "mdev")
    assert "vfio-device" in handles(host, "mdev")
    host.virsh("destroy", "mdev")
    for uuid in UUIDS[:2]:
        assert write(machine, f"/sys/bus/mdev/devices/{uuid}/remove", "1") == ""
    assert (left("222"), left("233")) == (16, 2)


def main() -> int:
    with Machine(ensure_image()) as machine:
        host = Host(machine)
        machine.write(IDLE_DISK, boot_disk("idle"))
        vfs = gpu.plug_gpus(machine, 1, 8)
        say(f"plugged in: {' '.join(vfs)}")
        check_files(machine, vfs[0])
        check_capacity(machine, vfs)
        check_faults(machine, vfs[7])
        check_guest(host, vfs[7])
        check_mdev(host, gpu.plug_mdev_gpu(machine))
        say("out, a snapshot, two others, and back")
        gpu.unplug_gpus(machine)
        say("unplugged")
        machine.snapshot("plain")
        assert len(gpu.plug_gpus(machine, 2, 4)) == 8
        say("plugged in again")
        machine.restore("plain")
        assert read(machine, f"{gpu.DRIVER}/writes") == ""
    say("all is as it should be")
    return 0


if __name__ == "__main__":
    sys.exit(main())
