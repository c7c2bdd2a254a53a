"""What the commands work with: the settings, the host, the store, and a lifecycle over them."""

from __future__ import annotations

from vgpu_hook import log, store_file
from vgpu_hook.bounded import Deadline
from vgpu_hook.catalogue import completed
from vgpu_hook.config import Settings
from vgpu_hook.host import Host
from vgpu_hook.lifecycle import Context, Lifecycle
from vgpu_hook.model import Domain, Parent
from vgpu_hook.planning import Planner
from vgpu_hook.store import Store


def parents(settings: Settings, opened: Store | None) -> tuple[Parent, ...]:
    """Return the host's parents as they are now, with all types that are known of them."""
    host = Host(settings, settings.roots.boot_id())
    found = host.parents(Deadline(settings.hook_deadline))
    return completed(found, opened.devices if opened is not None else None)


def planner(
    settings: Settings,
    opened: Store | None,
    parents_: tuple[Parent, ...] | None = None,
    *,
    reserve: bool = True,
) -> Planner:
    """Return what plans the hostdevs of definitions, over the host and the store as they are."""
    host = Host(settings, settings.roots.boot_id())

    def nodes_of(subject: Domain) -> frozenset[int]:
        return host.nodes_of(subject, Deadline(settings.hook_deadline))

    found = parents(settings, opened) if parents_ is None else parents_
    return Planner(found, opened, settings.placement, nodes_of, reserve=reserve)


def existing_store(settings: Settings) -> Store | None:
    """Return the store; None if nothing was ever recorded."""
    return store_file.open_store(settings.state, "command", wait=5, create=False)


def store(settings: Settings) -> Store:
    """Return the store, made if there is none."""
    opened = store_file.open_store(settings.state, "command", wait=5)
    if opened is None:
        raise RuntimeError("a store that was to be made is not there")
    return opened


def lifecycle(settings: Settings, opened: Store, operation: str) -> Lifecycle:
    """Return the rules, with the hook's deadline from now on."""
    host = Host(settings, settings.roots.boot_id())
    events = log.for_command(settings.roots.journal, operation)
    return Lifecycle(Context(settings, host, opened, events, Deadline(settings.hook_deadline)))


def uuids(name: str, opened: Store | None) -> list[str]:
    """Return the UUIDs that a domain's name, or UUID, stands for in the store."""
    return [name.lower(), *(opened.domains.uuids_of_name(name) if opened is not None else [])]
