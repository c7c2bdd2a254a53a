"""Mediated devices as kernel 6.1's drivers/vfio/mdev does them: parents, types, create and remove.

One kind of parent (see KINDS in host.py); vendor-specific VFIO on VFs is another: vendor.py.
The order of the checks and their errnos are those of mdev_sysfs.c and mdev_core.c (facts D1 to D4).
"""

from __future__ import annotations

import errno
import re
from typing import TYPE_CHECKING

from .hostmodel import ParentConfig, TypeConfig
from .pci import add_attribute
from .tree import Completion, Dir, detach

if TYPE_CHECKING:
    from .host import Host

_UUID = re.compile(rb"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_NUMBER = re.compile(rb"\+?(0[xX][0-9a-fA-F]+|[0-9]+)\n?")


class MdevParent:
    """A GPU, a VF or a sample driver's device that carries mediated devices."""

    def __init__(self, host: Host, config: ParentConfig) -> None:
        self.host = host
        self.config = config
        self.name = config.name
        self.registered = False
        self.unloading = False
        self.dir: Dir | None = None
        self._removing = False

    @property
    def devices(self) -> list[MdevDevice]:
        """All of its devices, in the order in which they came."""
        return [device for device in self.host.devices.values() if device.parent is self]

    @property
    def in_use(self) -> bool:
        return any(self.host.vfio.holders(device) for device in self.devices)

    def register(self) -> None:
        """mdev_register_parent: the types appear, then the link in /sys/class/mdev_bus."""
        sys_dir = self.host.sys
        here = sys_dir.dir("devices/" + self.config.path)
        self.dir = here
        alias = f"sys/class/mdev_bus/{self.name}"
        if alias not in here.aliases:
            here.aliases.append(alias)
        here.vanish = self.unregister
        for kind in self.config.types:
            self._add_type(here, kind)
        if self.config.pci is not None:
            self.host.pci.bind(self.config.pci, here)
        sys_dir.dir("bus/mdev/drivers/" + self.config.driver)
        sys_dir.dir("class/mdev_bus").link(self.name, here)
        self.registered, self.unloading = True, False

    def _add_type(self, here: Dir, kind: TypeConfig) -> None:
        where = here.dir(f"mdev_supported_types/{kind.id}")
        pool = self.host.pools[self.config.pool]

        def create(data: bytes) -> Completion | None:
            return self.create(kind, data)

        def available() -> bytes:
            return b"%d\n" % pool.available(self.name, kind)

        where.attr("create", None, create)
        where.attr("device_api", kind.device_api.encode() + b"\n")
        where.attr("available_instances", available)
        if kind.name is not None:
            where.attr("name", kind.name.encode() + b"\n")
        if kind.description is not None:
            where.attr("description", kind.description.encode() + b"\n")
        where.dir("devices").lasting = False

    def unregister(self) -> None:
        """mdev_unregister_parent: refuses what is new at once, and waits for what is under way."""
        if not self.registered:
            return
        self.registered, self.unloading = False, True
        self.cleanup()

    def cleanup(self) -> None:
        """Go on with it, as far as that goes now: called whenever a device is done with.

        It waits for its lock until no create or remove is under way. Then the link goes, and the
        devices one after the other (device_for_each_child): behind one that is in use the others
        wait, untouched.
        """
        if not self.unloading or self._removing:
            return
        self._removing = True
        while all(device.state == "active" for device in self.devices):
            self.host.sys.remove(f"class/mdev_bus/{self.name}")
            if not (devices := self.devices):
                self._remove_files()
                break
            devices[0].begin_removal()
        self._removing = False

    def _remove_files(self) -> None:
        self.unloading = False
        if self.dir is None:
            return
        if self.config.pci is None:
            detach(self.dir)
            return
        for name in ("mdev_supported_types", "driver"):
            self.dir.remove(name)
        self.dir.vanish = None

    def create(self, kind: TypeConfig, data: bytes) -> Completion | None:
        """create_store. Raises OSError; a slow driver's write ends with the Completion."""
        if len(data) not in (36, 37) or _UUID.match(data) is None:
            raise OSError(errno.EINVAL, "not a UUID")
        uuid = data[:36].decode().lower()
        if uuid in self.host.devices:
            raise OSError(errno.EEXIST, uuid)
        if not self.registered:
            raise OSError(errno.ENODEV, self.name)
        self.host.pools[self.config.pool].take(uuid, self.name, kind)
        device = MdevDevice(self, kind, uuid)
        self.host.devices[uuid] = device
        device.appear()
        if self.config.create_seconds <= 0 and not self.config.create_error:
            device.activate()
            return None
        done = Completion()
        self.host.after(self.config.create_seconds, lambda: device.probed(done))
        device.creation = done
        return done

    def vanish(self) -> None:
        self.unregister()


class MdevDevice:
    """One mediated device. state: creating (visible, not usable), active, removing."""

    def __init__(self, parent: MdevParent, kind: TypeConfig, uuid: str) -> None:
        self.parent = parent
        self.host = parent.host
        self.kind = kind
        self.uuid = uuid
        self.state = "creating"
        self.group = -1
        self.cdev = -1
        self.was_open = False
        self.cleaning = False
        self.creation: Completion | None = None
        self.removal: Completion | None = None
        assert parent.dir is not None
        self.dir = parent.dir.dir(uuid)
        self.dir.lasting = False

    @property
    def name(self) -> str:
        return self.uuid

    @property
    def argument(self) -> str:
        return f"sysfsdev=/sys/bus/mdev/devices/{self.uuid}"

    def check_open(self) -> None:
        """There is nothing that the driver waits for."""
        self.was_open = True

    def appear(self) -> None:
        """device_add: the directory, the link on the bus and `remove` are there before probing."""
        self.dir.aliases.append(f"sys/bus/mdev/devices/{self.uuid}")
        self.dir.vanish = self.vanish
        self.dir.attr("remove", None, self._remove_store)
        self.dir.attr("uevent", b"")
        self.host.sys.dir("bus/mdev/devices").link(self.uuid, self.dir)
        self.dir.link("subsystem", self.host.sys.dir("bus/mdev"))

    def activate(self) -> None:
        """The driver's probe and the links that follow it."""
        host, config = self.host, self.parent.config
        if host.config.vfio_mdev:
            self.group = host.vfio.new_group(self.uuid, self.dir)
            host.vfio.add(self)
            driver = config.driver if host.config.kernel >= (6, 0) else "vfio_mdev"
            self.dir.link("driver", host.sys.dir("bus/mdev/drivers/" + driver))
        assert self.parent.dir is not None
        kind_dir = self.parent.dir.dir(f"mdev_supported_types/{self.kind.id}")
        self.dir.link("mdev_type", kind_dir)
        kind_dir.dir("devices").link(self.uuid, self.dir)
        for entry in config.attributes:
            add_attribute(self.dir, entry)
        self.state = "active"

    def probed(self, done: Completion) -> None:
        """The end of a slow creation; too late if the device was taken away meanwhile."""
        if done.errno is not None or self.state != "creating":
            return
        if error := self.parent.config.create_error:
            self.unlink()
            self.finish_removal(creation=getattr(errno, error))
            return
        self.activate()
        done.finish()
        self.parent.cleanup()

    def _remove_store(self, data: bytes) -> Completion | None:
        if kstrtoul(data) == 0:
            return None
        if self.cleaning:
            raise OSError(getattr(errno, self.parent.config.clean_error), "the driver does it")
        self.dir.remove("remove")
        if self.state != "active":
            raise OSError(errno.EAGAIN, "not active")
        if not self.parent.registered:
            raise OSError(errno.ENODEV, "parent is going")
        if self.parent.config.leave_seconds > 0:
            self.state = "leaving"
            self.host.after(self.parent.config.leave_seconds, self._leave)
            return None
        return self.begin_removal()

    def _leave(self) -> None:
        self.begin_removal()

    def closed(self) -> None:
        """Nobody has it open any more: what waited for that goes on."""
        seconds = self.parent.config.clean_seconds
        if self.state == "removing":
            self.finish_removal()
        elif seconds is not None and self.state == "active" and self.was_open:
            self.was_open, self.cleaning = False, True
            self.host.after(seconds, self._clean)

    def _clean(self) -> None:
        if self.state == "active" and not self.host.vfio.holders(self):
            self.begin_removal()
        self.cleaning = False

    def begin_removal(self) -> Completion | None:
        """device_del up to the driver's remove, which waits for the last VFIO handle.

        While it waits the bus has no such device any more, but the device's own directory below
        the parent, its IOMMU group and its share of the capacity remain.
        """
        if self.host.devices.get(self.uuid) is not self:
            return None
        self.state = "removing"
        self.unlink()
        if not self.host.vfio.holders(self):
            self.finish_removal()
            return None
        self.removal = Completion()
        if self.parent.config.request_seconds is not None:
            self.host.after(self.parent.config.request_seconds, self._request)
        return self.removal

    def _request(self) -> None:
        """VFIO's request interrupt: QEMU unplugs the device from its guest, and lives on."""
        if self.host.devices.get(self.uuid) is self:
            self.host.vfio.close(self)

    def unlink(self) -> None:
        """All that goes before the wait."""
        self.host.sys.remove(f"bus/mdev/devices/{self.uuid}")
        if self.parent.dir is not None:
            kinds = f"mdev_supported_types/{self.kind.id}/devices/{self.uuid}"
            self.parent.dir.remove(kinds)
        for name in list(self.dir.children):
            if name not in ("iommu_group", "vfio-dev"):
                self.dir.remove(name)

    def finish_removal(self, error: int = 0, creation: int = errno.ENODEV) -> None:
        """The last handle is closed: give everything back and let the writer go on."""
        host = self.host
        if host.devices.get(self.uuid) is not self:
            return
        detach(self.dir)
        host.vfio.remove(self)
        host.vfio.end_group(self.group)
        host.pools[self.parent.config.pool].give_back(self.uuid)
        del host.devices[self.uuid]
        if self.creation is not None:
            self.creation.finish(creation)
        if self.removal is not None:
            self.removal.finish(error)
        self.parent.cleanup()

    def vanish(self) -> None:
        """Gone without a trace and without waiting, as if somebody else had removed it."""
        self.state = "removing"
        self.unlink()
        self.finish_removal(errno.ENODEV)


def kstrtoul(data: bytes) -> int:
    """lib/kstrtox.c with base 0: decimal, 0x and octal, one newline allowed. Raises EINVAL."""
    match = _NUMBER.fullmatch(data)
    if match is None:
        raise OSError(errno.EINVAL, "not a number")
    digits = match.group(1).decode().lower()
    base = 16 if digits.startswith("0x") else 8 if digits.startswith("0") else 10
    try:
        return int(digits, base)
    except ValueError:
        raise OSError(errno.EINVAL, "not a number") from None
