"""The domains of the simulated libvirtd, and the events that each change causes.

Nothing here calls the hook: that is qemu.py, or the test itself, around `started` and `stopped`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

import libvirt

from tests.domains import vgpus_of

from . import definitions
from .errors import SimError as SimError
from .errors import failed, invalid, no_domain
from .facade import Happened

LIFECYCLE = libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE
METADATA = libvirt.VIR_DOMAIN_EVENT_ID_METADATA_CHANGE
ADDED = libvirt.VIR_DOMAIN_EVENT_ID_DEVICE_ADDED
REMOVED = libvirt.VIR_DOMAIN_EVENT_ID_DEVICE_REMOVED
CONFIG = libvirt.VIR_DOMAIN_AFFECT_CONFIG
LIVE = libvirt.VIR_DOMAIN_AFFECT_LIVE
VGPUS = "urn:vgpu-hook:domain:1"


@dataclass
class SimDomain:
    """One domain. `busy` is held while its hook runs: libvirt's calls on it wait for that."""

    uuid: str
    name: str
    definition: str | None = None
    live: str | None = None
    image: str | None = None
    """A managed save: what the next start goes on from."""
    undefined: str | None = None
    """What is told of it as inactive while it runs without a definition: its last one, or what it
    was created with (virDomainObj's newDef)."""
    busy: threading.RLock = field(default_factory=threading.RLock, compare=False)


class SimLibvirt:
    """The state, and what an admin does to it.

    `pending`: what has happened and nobody has heard of; a test may take out, repeat and move what
    it likes, before `deliver`. With `auto` each event is delivered at once.
    `on_destroy(domain)`: what virDomainDestroy does; QEMU ends and the hook runs.
    `on_attach(domain, hostdev)`: QEMU takes a device at `attach --live`; may raise SimError.
    `on_detach(domain, alias)`: the guest is asked to let go; by default it does so at once.
    """

    def __init__(self, version: int = 11_003_000) -> None:
        self.version = version
        """libvirt's, as in getLibVersion: 10_005_000 and later tell the hook why a VM stopped."""
        self.domains: dict[str, SimDomain] = {}
        self.volumes: dict[str, tuple[str, str]] = {}
        """Storage: path -> pool and name."""
        self.pending: list[Happened] = []
        self.listeners: list[Callable[[Happened], None]] = []
        self.auto = False
        self.on_destroy: Callable[[SimDomain], None] = self._destroyed
        self.on_attach: Callable[[SimDomain, str], None] = lambda domain, hostdev: None
        self.on_detach: Callable[[SimDomain, str], None] = self.let_go
        self.before: Callable[..., None] = lambda call, *arguments: None
        """Called before each call of a connection is answered: its name, the domain's UUID if it is
        a domain's, its arguments."""
        self.refuses = False
        """Whether new connections fail and calls on old ones too."""
        self.failing: dict[str, list[SimError]] = {}
        """By libvirt's name of a call, how the next of it fail."""
        self.serving = threading.Event()
        """Calls wait while it is not set, as when libvirtd hangs. Not for calls in-process."""
        self.serving.set()
        self._number = 0
        self._lock = threading.RLock()

    # -- what an admin does -----------------------------------------------------------------

    def define(self, xml: str, detail: int | None = None) -> SimDomain:
        """Define a domain or change its definition. Raises SimError as libvirt does."""
        accepted = definitions.accept(xml)
        domain = self.place_for(accepted)
        with domain.busy:
            known = domain.definition is not None
            self.domains[domain.uuid] = domain  # it may have gone while we waited
            domain.definition = accepted.xml
            if detail is None:
                updated = libvirt.VIR_DOMAIN_EVENT_DEFINED_UPDATED
                detail = updated if known else libvirt.VIR_DOMAIN_EVENT_DEFINED_ADDED
            self.lifecycle(domain, libvirt.VIR_DOMAIN_EVENT_DEFINED, detail)
        return domain

    def place_for(self, accepted: definitions.Definition) -> SimDomain:
        """Return the domain of this UUID, new if need be; refuse a name or UUID of another."""
        with self._lock:
            domain = self.domains.get(accepted.uuid)
            if domain is not None and domain.name != accepted.name:
                raise failed(f"domain '{domain.name}' is already defined with uuid {domain.uuid}")
            for other in self.domains.values():
                if other.name == accepted.name and other.uuid != accepted.uuid:
                    raise failed(f"domain '{other.name}' already exists with uuid {other.uuid}")
            return self.domains.setdefault(accepted.uuid, SimDomain(accepted.uuid, accepted.name))

    def rename(self, domain: SimDomain, name: str) -> None:
        """Give a stopped domain another name."""
        with domain.busy:
            if domain.live is not None:
                raise invalid("cannot rename active domain")
            if name == domain.name:
                raise invalid("Can't rename domain to itself")
            if any(other.name == name for other in self.domains.values()):
                raise invalid(f"domain with name '{name}' already exists")
            gone = libvirt.VIR_DOMAIN_EVENT_UNDEFINED_RENAMED
            self.lifecycle(domain, libvirt.VIR_DOMAIN_EVENT_UNDEFINED, gone)
            domain.definition = definitions.renamed(str(domain.definition), name)
            domain.name = name
            came = libvirt.VIR_DOMAIN_EVENT_DEFINED_RENAMED
            self.lifecycle(domain, libvirt.VIR_DOMAIN_EVENT_DEFINED, came)

    def undefine(self, domain: SimDomain, flags: int = 0) -> None:
        """Take the definition away; a domain that runs goes on as a transient one."""
        with domain.busy:
            if domain.definition is None:
                raise invalid("cannot undefine transient domain")
            if domain.image is not None and not flags & libvirt.VIR_DOMAIN_UNDEFINE_MANAGED_SAVE:
                raise invalid("Refusing to undefine while domain managed save image exists")
            domain.undefined = domain.definition
            domain.definition = domain.image = None
            removed = libvirt.VIR_DOMAIN_EVENT_UNDEFINED_REMOVED
            self.lifecycle(domain, libvirt.VIR_DOMAIN_EVENT_UNDEFINED, removed)
            self.forget_if_gone(domain)

    def started(self, domain: SimDomain, xml: str, detail: int = 0) -> None:
        """The domain runs now, with this XML."""
        domain.live = xml
        domain.undefined = definitions.at_rest(xml)
        self.lifecycle(domain, libvirt.VIR_DOMAIN_EVENT_STARTED, detail)

    def stopped(self, domain: SimDomain, detail: int = 0) -> None:
        """The domain runs no more."""
        domain.live = None
        self.lifecycle(domain, libvirt.VIR_DOMAIN_EVENT_STOPPED, detail)
        self.forget_if_gone(domain)

    def set_metadata(
        self,
        domain: SimDomain,
        xml: str | None,
        uri: str = VGPUS,
        *,
        key: str = "vgpu",
        flags: int = LIVE,
    ) -> None:
        """Change what the metadata says, of what runs, of the definition, or of both."""
        with domain.busy:
            live, config = self._affected(domain, flags)
            if live:
                domain.live = definitions.with_metadata(str(domain.live), xml, key, uri)
            if config:
                domain.definition = definitions.with_metadata(str(domain.definition), xml, key, uri)
            element = libvirt.VIR_DOMAIN_METADATA_ELEMENT
            self._add(Happened(METADATA, domain.uuid, domain.name, (element, uri)))

    def attach(self, domain: SimDomain, hostdev: str) -> None:
        """Put a device into a running domain; no hook is called for that (facts B2)."""
        with domain.busy:
            if domain.live is None:
                raise invalid("domain is not running")
            after = definitions.with_hostdev(domain.live, hostdev)
            self.on_attach(domain, hostdev)
            domain.live = after
            alias = definitions.last_alias(after)
            self._add(Happened(ADDED, domain.uuid, domain.name, (alias,)))

    def detach(self, domain: SimDomain, alias: str) -> None:
        """Ask the guest of a running domain to let go of a device; else change the definition."""
        with domain.busy:
            subject = domain.definition if domain.live is None else domain.live
            after = definitions.without_device(str(subject), alias)
            if after is None:
                text = f"internal error: no device found with alias {alias}"
                raise SimError(libvirt.VIR_ERR_INTERNAL_ERROR, text)
            if domain.live is None:
                domain.definition = after
            else:
                self.on_detach(domain, alias)

    def let_go(self, domain: SimDomain, alias: str) -> None:
        """The guest has let go of a device."""
        with domain.busy:
            after = definitions.without_device(str(domain.live), alias)
            if after is not None:
                domain.live = after
                self._add(Happened(REMOVED, domain.uuid, domain.name, (alias,)))

    def unplugged(self, domain: SimDomain, slot: str) -> None:
        """The guest has let go of a vGPU."""
        self.let_go(domain, f"ua-vgpu-{slot}")

    # -- what is asked of it ----------------------------------------------------------------

    def find(self, *, uuid: str = "", name: str = "") -> SimDomain:
        """Return a domain, or raise SimError."""
        for domain in list(self.domains.values()):
            if domain.uuid == uuid.lower() or (name and domain.name == name):
                return domain
        raise no_domain(f"uuid '{uuid}'" if uuid else f"name '{name}'")

    def list(self, *, active: bool = False, inactive: bool = False) -> list[SimDomain]:
        """Return the domains, after the hooks that are at work; both or neither: all."""
        found = []
        for domain in list(self.domains.values()):
            with domain.busy:
                wanted = active == inactive or active == (domain.live is not None)
                if wanted and self._is_there(domain):
                    found.append(domain)
        return found

    @contextmanager
    def asked(self, uuid: str, known_as: str = "") -> Iterator[SimDomain]:
        """Hold a domain for one call on it; libvirt waits for the domain's hook here.

        `known_as`: the name that the caller has of it, for the error.
        """
        domain = self.domains.get(uuid)
        with domain.busy if domain is not None else nullcontext():
            if domain is None or not self._is_there(domain):
                raise no_domain(f"uuid '{uuid}'" + (known_as and f" ({known_as})"))
            yield domain

    def describe(self, domain: SimDomain, flags: int = 0) -> str:
        """Return its XML as virDomainGetXMLDesc does."""
        if domain.live is None:
            return str(domain.definition)
        if flags & libvirt.VIR_DOMAIN_XML_INACTIVE:
            return str(domain.undefined if domain.definition is None else domain.definition)
        if flags & libvirt.VIR_DOMAIN_XML_MIGRATABLE:
            return definitions.at_rest(domain.live)
        return domain.live

    # -- events and faults --------------------------------------------------------------------

    def deliver(self, count: int | None = None) -> int:
        """Hand the oldest events to those who listen; return how many."""
        with self._lock:
            taken = self.pending[:count]
            del self.pending[:count]
            listeners = list(self.listeners)
        for event in taken:
            for listener in listeners:
                listener(event)
        return len(taken)

    def drop(self, position: int = 0) -> Happened:
        """Have an event be lost."""
        return self.pending.pop(position)

    def duplicate(self, position: int = 0) -> Happened:
        """Have an event come a second time, at the end."""
        self.pending.append(self.pending[position])
        return self.pending[position]

    def delay(self, position: int = 0) -> Happened:
        """Have an event come after all others."""
        self.pending.append(self.pending.pop(position))
        return self.pending[-1]

    def fail(self, call: str, code: int, message: str, times: int = 1) -> None:
        """Have the next calls of this name (`defineXML`) fail."""
        self.failing.setdefault(call, []).extend([SimError(code, message)] * times)

    @property
    def happened(self) -> int:
        """How many events there have been."""
        return self._number

    def lifecycle(self, domain: SimDomain, event: int, detail: int) -> None:
        """Have a lifecycle event be heard of."""
        self._add(Happened(LIFECYCLE, domain.uuid, domain.name, (event, detail)))

    def forget_if_gone(self, domain: SimDomain) -> None:
        """A domain that is neither defined nor running is none."""
        if domain.definition is None and domain.live is None:
            self.domains.pop(domain.uuid, None)

    def _is_there(self, domain: SimDomain) -> bool:
        """Tell of a domain, while it is held: it may have gone, or not have come to be."""
        exists = domain.definition is not None or domain.live is not None
        return exists and self.domains.get(domain.uuid) is domain

    def _add(self, event: Happened) -> None:
        with self._lock:
            self._number += 1
            self.pending.append(event._replace(number=self._number))
        if self.auto:
            self.deliver()

    def _destroyed(self, domain: SimDomain) -> None:
        self.stopped(domain, libvirt.VIR_DOMAIN_EVENT_STOPPED_DESTROYED)

    def _affected(self, domain: SimDomain, flags: int) -> tuple[bool, bool]:
        """Whether flags mean what runs and the definition; raise SimError if it has it not."""
        if flags & (LIVE | CONFIG) == 0:
            flags |= LIVE if domain.live is not None else CONFIG
        if flags & LIVE and domain.live is None:
            raise invalid("domain is not running")
        if flags & CONFIG and domain.definition is None:
            raise invalid("transient domains do not have any persistent config")
        return bool(flags & LIVE), bool(flags & CONFIG)


def devices_of(xml: str) -> dict[str, str]:
    """By slot, the device of each hostdev under the product's alias."""
    return {slot: device for slot, (_, device) in vgpus_of(xml).items()}
