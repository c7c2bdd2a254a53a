"""`vgpu-hook delete`: takes a domain away in the order that loses no vGPU (R1, R10).

Block restarts (persisted) -> stop the VM -> release the vGPU (persisted) -> network and other
devices, snapshots and saved state -> undefine -> volumes. Each step can be done again, so that a
deletion that was killed at any point is finished by running it again; the mark that blocks
starts stays until the very end, also when the definition has gone already.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import libvirt

from vgpu_hook import domain
from vgpu_hook.libvirtd import Libvirt, NoDomain
from vgpu_hook.lifecycle import Lifecycle
from vgpu_hook.model import VgpuError
from vgpu_hook.store import Store

UNDEFINE = (
    libvirt.VIR_DOMAIN_UNDEFINE_MANAGED_SAVE
    | libvirt.VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA
    | libvirt.VIR_DOMAIN_UNDEFINE_CHECKPOINTS_METADATA
    | libvirt.VIR_DOMAIN_UNDEFINE_NVRAM
)


class Deletion:
    """One domain's deletion. `say` shows each step as it is done."""

    def __init__(
        self,
        libvirt_: Libvirt,
        store: Store,
        lifecycle_for: Callable[[], Lifecycle],
        say: Callable[[str], None],
    ) -> None:
        self._libvirt = libvirt_
        self._store = store
        self._lifecycle_for = lifecycle_for
        self._say = say
        self._uuid = ""
        self._name = ""

    def run(self, subject: str, *, remove_storage: bool) -> None:
        """Delete the domain of this name or UUID, or go on with its deletion."""
        found = self._identify(subject)
        self._store.domains.mark_deleting(self._uuid, self._name)
        self._step("starts blocked")
        if found is not None:
            # As long as there is a definition, this run's flag decides what is removed.
            text = self._libvirt.definition(found)
            volumes = self._volume_paths(text) if remove_storage else []
            self._store.domains.set_volumes(self._uuid, volumes)
            self._stop(found)
        self._release()
        if found is not None:
            self._undefine(found)
        for path in self._store.domains.volumes(self._uuid):
            self._remove_volume(path)
        self._store.domains.end_deletion(self._uuid)
        self._step("done")

    def cancel(self, subject: str) -> None:
        """Call off a deletion: the domain, if it is still defined, can be started again."""
        self._identify(subject)
        if self._store.domains.deleting_since(self._uuid) is None:
            raise VgpuError(f"domain {self._name!r} is not being deleted", "run: virsh list --all")
        self._store.domains.end_deletion(self._uuid, keep=True)
        self._step("called off")

    def _volume_paths(self, text: bytes) -> list[str]:
        """Return the paths of the domain's volumes; say which can't be found."""
        paths = []
        for pool, volume in domain.volumes(text):
            if not pool:
                paths.append(volume)
                continue
            try:
                found = self._libvirt.connection.storagePoolLookupByName(pool)
                paths.append(found.storageVolLookupByName(volume).path())
            except libvirt.libvirtError as error:
                self._step("volume left", f"{pool}/{volume}: {error.get_error_message()}")
        return paths

    def _identify(self, subject: str) -> Any:
        """Return libvirt's domain; None if a deletion has got so far that it is undefined."""
        try:
            found = self._libvirt.find(subject)
            self._uuid, self._name = found.UUIDString(), found.name()
            return found
        except NoDomain:
            for domain_uuid in [subject.lower(), *self._store.domains.uuids_of_name(subject)]:
                if self._store.domains.deleting_since(domain_uuid) is not None:
                    self._uuid = domain_uuid
                    self._name = self._store.domains.name_of(domain_uuid) or subject
                    return None
            raise

    def _stop(self, found: Any) -> None:
        """Stop it; libvirt runs the hook, which releases the vGPU before anything else."""
        if self._libvirt.is_active(found):
            try:
                self._libvirt.call(found, found.destroy)
            except VgpuError:
                if self._libvirt.is_active(found):
                    raise
        self._step("stopped")

    def _release(self) -> None:
        try:
            left = self._lifecycle_for().release_all(self._uuid)
        except VgpuError as error:  # R3: a failed release never fails the delete
            self._step("vGPU retained", str(error))
            return
        for row in left:
            self._step("vGPU retained", f"{row.device}: {row.reason}")
        if not left:
            self._step("vGPU released")

    def _undefine(self, found: Any) -> None:
        try:
            if self._libvirt.call(found, found.isPersistent):
                self._libvirt.call(found, found.undefineFlags, UNDEFINE)
        except NoDomain:  # a transient domain goes when it stops
            pass
        self._step("undefined")

    def _remove_volume(self, path: str) -> None:
        """Remove a volume of a storage pool, as `virsh undefine --remove-all-storage` does."""
        try:
            volume = self._libvirt.connection.storageVolLookupByPath(path)
            volume.delete()
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_NO_STORAGE_VOL:
                raise VgpuError(
                    f"volume {path}: {error.get_error_message()}",
                    f"run again: vgpu-hook delete {self._uuid}",
                ) from None
            self._step("volume left", f"{path} is gone, or in no storage pool")
            return
        self._step("volume removed", path)

    def _step(self, text: str, detail: str = "") -> None:
        self._store.note(self._uuid, self._name, f"delete: {text}", detail)
        self._say(f"{text}: {detail}" if detail else text)
