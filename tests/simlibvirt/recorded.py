"""The domains of a bundle of `vgpu-hook record`, in the simulated libvirtd."""

from __future__ import annotations

from tests.simhost.bundle import Bundle

from . import definitions
from .state import SimLibvirt


def fill(libvirt: SimLibvirt, bundle: Bundle) -> None:
    """Define what was defined, and have run what ran. No hook is called, nothing is told."""
    for number, listed in enumerate(bundle.parts["domains"]["listed"], start=1):
        live = bundle.domains.get(f"{listed['uuid']}.live")
        definition = bundle.domains.get(f"{listed['uuid']}.definition", live)
        if definition is None:
            continue
        domain = libvirt.define(definition)
        if live is not None and listed["active"]:
            libvirt.started(domain, definitions.running(live, number))
        if not listed["persistent"]:
            domain.definition = None
    libvirt.pending.clear()
