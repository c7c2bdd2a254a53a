"""The words of vgpu-hook as value types: requests, devices, assignments, errors.

Imports the standard library only and touches nothing outside the process. Values are
NamedTuples: immutable, and a fraction of the import price of dataclasses, which every
VM start with a vGPU would pay.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

NAMESPACE = "urn:vgpu-hook:domain:1"
"""The XML namespace of a request in a domain's <metadata>."""

ALIAS_PREFIX = "ua-vgpu-"
"""User aliases start with ua-; libvirt keeps them in every XML that a hook is given."""

DERIVED_UUIDS = uuid.UUID("9c1b4f0e-6f0b-5a53-8a39-2f4d7f0f7c11")
"""Namespace of derived device UUIDs. Changing it orphans every device in the field."""

RESERVED = "reserved"
CREATING = "creating"
ASSIGNED = "assigned"
RELEASING = "releasing"
RETAINED = "retained"
GPU_STATES = ("vfs-off", "driver-missing", "passthrough", "unsupported", "no-instances")
STATES = (RESERVED, CREATING, ASSIGNED, RELEASING, RETAINED)

FORK_POLICIES = ("new", "none", "refuse")
PLACEMENTS = ("spread", "pack")

MDEV = "mdev"
VENDOR_VFIO = "vendor-vfio"
HOSTDEV_TYPE = {MDEV: "mdev", VENDOR_VFIO: "pci"}
"""The frameworks, and the type of the <hostdev> that carries a vGPU of each into a domain."""
FRAMEWORK = {kind: framework for framework, kind in HOSTDEV_TYPE.items()}


class VgpuError(Exception):
    """What went wrong, for people: the object and the cause, and the next command."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        """One line, whatever is in the parts: virsh shows it inside a line of its own."""
        return one_line(f"{self.message}; {self.hint}" if self.hint else self.message)


def denied_hint(path: str) -> str:
    """Return what helps where the kernel denies us a file (EACCES, EPERM)."""
    if os.geteuid() != 0:
        return "run it as root"
    return f"see: ls -lZd {path}; journalctl -k --grep denied (AppArmor, SELinux)"


class Refused(VgpuError):
    """A start that must not go on."""


class ConfigError(VgpuError):
    """The configuration file can't be used."""


class StoreError(VgpuError):
    """The sidecar store can't be used. It is never repaired or overwritten by itself."""


class DomainXmlError(VgpuError):
    """The domain's XML, or the request in it, can't be understood."""


class KernelError(VgpuError):
    """A kernel file answered with an error. `code` is the errno, or 0."""

    def __init__(self, message: str, hint: str = "", code: int = 0) -> None:
        super().__init__(message, hint)
        self.args = (message, hint, code)
        self.code = code


class Unblamed(KernelError):
    """An error that is no fault of the device, and is not counted towards its quarantine."""


class NoCapacity(Unblamed):
    """The kernel or the driver has no room for one more vGPU of this type on this parent."""


class NotAsAsked(KernelError):
    """The kernel made something else than was written; `type` is what was read back."""

    def __init__(self, message: str, type_id: str) -> None:
        super().__init__(message)
        self.args = (message, type_id)
        self.type = type_id


class DeadlineExceeded(VgpuError):
    """Something that had to be waited for has not answered in time."""


class VgpuRequest(NamedTuple):
    """One <vgpu> of a request. `gpu` pins it to a GPU (PCI address or sysfs name).

    `placement` is `spread` or `pack`; None leaves it to the configuration.
    """

    slot: str
    profile: str
    gpu: str | None = None
    fork: str = "new"
    display: str | None = None
    ramfb: str | None = None
    params: str | None = None
    placement: str | None = None


class Hostdev(NamedTuple):
    """A <hostdev>: `type` is libvirt's (mdev, pci, ...), `slot` is set for ours by alias.

    `address` is the mdev UUID in lower case, or the PCI address 0000:00:00.0, or "".
    `model` is for mdev alone, and `managed` for pci.
    """

    type: str
    address: str
    slot: str | None
    model: str | None = None
    managed: str | None = None


class Domain(NamedTuple):
    """What a domain's XML says that matters here. `uuid` is in libvirt's lower-case form.

    `nodes` are the host's NUMA nodes that its memory is bound to, `cpus` the CPUs that its
    vCPUs are pinned to; empty if they are not. `marks` say by slot which domain a VF was chosen for
    (owner_mark), as noted in the request. `refused` is why it can't be restored, if so.
    """

    uuid: str
    name: str
    request: tuple[VgpuRequest, ...]
    hostdevs: tuple[Hostdev, ...]
    nodes: frozenset[int] = frozenset()
    cpus: frozenset[int] = frozenset()
    marks: Mapping[str, str] = MappingProxyType({})
    refused: str = ""

    def inherits(self, hostdev: Hostdev) -> bool:
        """Tell whether a hostdev under our alias was given to the domain that this was made from.

        An mdev's UUID tells by itself. A VF's address tells nothing, since VFs are shared by
        definitions: there the mark does, which a fork's XML carries along.
        """
        if hostdev.type == HOSTDEV_TYPE[VENDOR_VFIO]:
            return self.marks.get(hostdev.slot or "") not in (None, owner_mark(self.uuid))
        return hostdev.address != derive_device_uuid(self.uuid, hostdev.slot or "")

    def hostdev(self, slot: str) -> Hostdev | None:
        """Return the hostdev under this slot's alias, if there is one."""
        return next((h for h in self.hostdevs if h.slot == slot), None)


class VgpuType(NamedTuple):
    """A type that a parent offers. `available` and `in_use` count instances on this parent.

    `framebuffer` is in MiB, 0 if it is not known.
    """

    id: str
    name: str
    description: str
    device_api: str
    available: int
    in_use: int
    framebuffer: int = 0


class Parent(NamedTuple):
    """A device that carries vGPUs, as it is now. `problem` says why it can't be used.

    `name` is the kernel's (a PCI address, or e.g. `mtty`); `gpu` is the GPU that it
    belongs to: its physical function if it is a VF, else itself. `state` is one of GPU_STATES
    if the whole GPU offers nothing. `card` names the model of the GPU, to which its type ids
    belong. `node` is its NUMA node, -1 if it has none.
    """

    framework: str
    name: str
    gpu: str
    types: tuple[VgpuType, ...]
    devices: tuple[str, ...] = ()
    problem: str = ""
    state: str = ""
    card: str = ""
    node: int = -1

    @property
    def current(self) -> str:
        """Return the id of the type that a VF carries; empty if it carries none."""
        return next((t.id for t in self.types if t.in_use), "")


class Found(NamedTuple):
    """A vGPU as read back from the kernel.

    `removing`: the kernel has begun to take it down and has not finished.
    `handles` are the paths whose open file handles mean that it is in use.
    `detail` is what else the driver says of it, such as its GPU instance.
    """

    framework: str
    device: str
    parent: str
    type: str
    handles: tuple[str, ...]
    removing: bool = False
    detail: str = ""


class Holder(NamedTuple):
    """A process that has a VFIO handle open."""

    pid: int
    command: str
    path: str


class Assignment(NamedTuple):
    """A record of the sidecar store: this slot of this domain has this device.

    `generation` is unique for ever: a release names the generation that it is for.
    `changed` is UTC in ISO 8601.
    """

    generation: int
    domain_uuid: str
    domain_name: str
    slot: str
    framework: str
    device: str
    parent: str
    type: str
    profile: str
    state: str
    boot_id: str
    reason: str
    changed: str


def one_line(text: str) -> str:
    """Return the text for a terminal or a journal: nothing in it ends the line or steers them.

    Names come from outside, and XML may hold what 8-bit terminals obey.
    """
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))


def is_ours(text: bytes) -> bool:
    """Tell whether a domain's XML may hold a request or a hostdev of ours, without parsing it."""
    return NAMESPACE.encode() in text or ALIAS_PREFIX.encode() in text


def shell_word(domain_name: str) -> str:
    """Return a domain's name as the last word of a shell command, for hints."""
    import shlex  # only needed when something is refused

    return ("-- " if domain_name.startswith("-") else "") + shlex.quote(domain_name)


def plain_name(text: str) -> str:
    """Return a GPU's or VF's name in the kernel's form: `41:00.0`, and nvidia-smi's
    `00000000:41:00.0`, are 0000:41:00.0. What is no PCI address is only put in lower case."""
    parts = text.strip().casefold().split(":")
    if len(parts) not in (2, 3) or "." not in parts[-1]:
        return text.strip().casefold()
    domain, bus, rest = parts if len(parts) == 3 else ["0", *parts]
    return f"{domain.lstrip('0').zfill(4)}:{bus}:{rest}"


def new_assignment(
    domain_uuid: str,
    domain_name: str,
    request: VgpuRequest,
    parent: Parent | Found,
    type_id: str,
    boot_id: str,
    device: str | None = None,
) -> Assignment:
    """Return the record of a vGPU that is about to be made, or was found; not yet stored.

    `device` defaults to the slot's derived UUID.
    """
    return Assignment(
        generation=0,
        domain_uuid=domain_uuid,
        domain_name=domain_name,
        slot=request.slot,
        framework=parent.framework,
        device=device or derive_device_uuid(domain_uuid, request.slot),
        parent=parent.name if isinstance(parent, Parent) else parent.parent,
        type=type_id,
        profile=request.profile,
        state=CREATING,
        boot_id=boot_id,
        reason="",
        changed="",
    )


def derive_device_uuid(domain_uuid: str, slot: str) -> str:
    """Return the mdev UUID of a domain's slot: UUIDv5 of both (design, section 3)."""
    return str(uuid.uuid5(DERIVED_UUIDS, f"{domain_uuid.lower()}/{slot}"))


def owner_mark(domain_uuid: str) -> str:
    """Return what marks VFs as chosen for this domain: derived, so that no copy can adopt it.

    The text that is hashed is none that derive_device_uuid has: a slot's name holds no colon.
    """
    return str(uuid.uuid5(DERIVED_UUIDS, f"{domain_uuid.lower()}/vfs:"))
