"""GPUs for the test host: PCI devices that QEMU plugs in, under the module vgpu_testgpu.

To the software inside they are NVIDIA's: VFs with nvidia/current_vgpu_type that libvirt can pass
to a guest, or a card with mediated device types nvidia-222 and up. Not for graphics. What the
module mimics, and from which source, is written in image/modules/. QEMU can't have them in a
snapshot: after Machine.restore() they are out, and can be plugged in again.
"""

from typing import Literal

from tests.testbed.errors import TestbedError
from tests.testbed.machine import Machine

DRIVER = "/sys/bus/pci/drivers/nvidia"
MODULE = "vgpu_testgpu"
# The root ports of recipe.HARDWARE.
SLOTS = ("0000:00:05.0", "0000:00:06.0")

Fault = Literal[
    "none",
    "reset-eio",
    "reset-ebusy",
    "wedged",
    "unreadable",
    "ignore-write",
    "wrong-type",
    "slow-create",
]

# Arguments: the root port. Prints the address of the device in it.
# Gives the device in root port $1 to our driver.
_BIND = """
set -eu
bind() {
    for try in $(seq 300); do
        for device in /sys/bus/pci/devices/$1/0000:*; do
            [ ! -e "$device/driver_override" ] || break 2
        done
        sleep 0.1
    done
    echo nvidia >"$device/driver_override"
    echo "${device##*/}" >/sys/bus/pci/drivers_probe
    [ -e "$device/driver" ]
}
"""

_MAKE_VFS = """
count=$1
shift
for port; do
    bind "$port"
    echo 0 >"$device/sriov_drivers_autoprobe"
    echo "$count" >"$device/sriov_numvfs"
    for link in "$device"/virtfn*; do
        vf=$(readlink "$link")
        vf=${vf##*/}
        echo nvidia >"$link/driver_override"
        echo "$vf" >/sys/bus/pci/drivers_probe
        [ -e "$link/nvidia/current_vgpu_type" ]
        echo "$vf"
    done
done
"""

_MAKE_PARENT = """
bind "$1"
[ -d "$device/mdev_supported_types" ]
echo "${device##*/}"
"""


def plug_gpus(
    machine: Machine,
    gpus: int = 1,
    vfs: int = 8,
    *,
    same_type: bool = False,
    framebuffer_mib: int = 48 * 1024,
) -> list[str]:
    """Plug in GPUs with so many VFs each; return the VFs' addresses, those of the first GPU first.

    same_type, framebuffer_mib: see enable_vfs.
    """
    if not 1 <= gpus <= len(SLOTS):
        raise ValueError(f"there is room for {len(SLOTS)} GPUs, not for {gpus}")
    for slot in range(gpus):
        machine.plug(
            f"gpu{slot}",
            "nvme",
            bus=f"slot{slot}",
            subsys=f"subsys{slot}",
            serial=f"gpu{slot}",
            sriov_max_vfs=vfs,
            # Two queues and one interrupt for each VF, and more than that for the PF.
            sriov_vq_flexible=2 * vfs,
            sriov_vi_flexible=vfs,
            max_ioqpairs=2 * vfs + 10,
            msix_qsize=vfs + 9,
        )
    return enable_vfs(machine, gpus, vfs, same_type=same_type, framebuffer_mib=framebuffer_mib)


def enable_vfs(
    machine: Machine,
    gpus: int = 1,
    vfs: int = 8,
    *,
    same_type: bool = False,
    framebuffer_mib: int = 48 * 1024,
) -> list[str]:
    """Make the VFs of plugged GPUs, as after a reboot NVIDIA's sriov-manage would; see plug_gpus.

    same_type: all vGPUs of a GPU are of the type of its first. framebuffer_mib: of each GPU.
    """
    machine.run(["modprobe", MODULE])
    set_parameter(machine, "same_type", int(same_type))
    set_parameter(machine, "framebuffer_mib", framebuffer_mib)
    return _script(machine, _MAKE_VFS, str(vfs), *SLOTS[:gpus])


def plug_mdev_gpu(machine: Machine, slot: int = 1) -> str:
    """Plug in a GPU with mediated device types; return its address, which is the mdev parent's.

    slot: of the two; GPUs with VFs use them from 0 on.
    """
    machine.run(["modprobe", MODULE])
    machine.plug(f"gpu{slot}", "edu", bus=f"slot{slot}")
    (address,) = _script(machine, _MAKE_PARENT, SLOTS[slot])
    return address


def _script(machine: Machine, script: str, *arguments: str) -> list[str]:
    return machine.run(["sh", "-s", "--", *arguments], input=_BIND + script).stdout.split()


def unplug_gpus(machine: Machine) -> None:
    """Unplug all GPUs. None may be in use by a guest, and no mediated device may be left."""
    for slot in range(len(SLOTS)):
        if machine.is_plugged(f"gpu{slot}"):
            machine.unplug(f"gpu{slot}")


def set_parameter(machine: Machine, name: str, value: int) -> None:
    """Set a parameter of the module, for all GPUs: same_type, framebuffer_mib."""
    machine.run(f"echo {value} >/sys/module/{MODULE}/parameters/{name}")


def set_fault(machine: Machine, vf: str, fault: Fault, *, milliseconds: int = 0) -> None:
    """Make a VF misbehave from now on, in one way at a time; "none" ends it.

    reset-eio, reset-ebusy: writing 0 fails. wedged: every write fails. unreadable: reading
    current_vgpu_type and creatable_vgpu_types fails. ignore-write: a write succeeds and changes
    nothing. wrong-type: another creatable type is set. slow-create takes so many milliseconds.
    """
    machine.run(f"echo {vf} {fault} {milliseconds} >{DRIVER}/fault")


def writes(machine: Machine, vf: str) -> int:
    """Return how often a VF's current_vgpu_type was written, refused writes included."""
    for line in machine.run(["cat", f"{DRIVER}/writes"]).stdout.splitlines():
        address, count = line.split()
        if address == vf:
            return int(count)
    raise TestbedError(f"the module has no VF {vf}")


def vf_file(vf: str, name: str) -> str:
    """Return the path of a file in a VF's nvidia/."""
    return f"/sys/bus/pci/devices/{vf}/nvidia/{name}"


def current_type(machine: Machine, vf: str) -> int:
    """Return the type id that a VF has, or 0."""
    return int(machine.run(["cat", vf_file(vf, "current_vgpu_type")]).stdout)


def creatable_types(machine: Machine, vf: str) -> dict[int, str]:
    """Return the ids and names that a VF offers at the moment."""
    lines = machine.run(["cat", vf_file(vf, "creatable_vgpu_types")]).stdout.splitlines()[1:]
    pairs = (line.split(":", 1) for line in lines)
    return {int(number): name.strip() for number, name in pairs}
