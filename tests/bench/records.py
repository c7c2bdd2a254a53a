"""Domains and devices on record, as many as are wanted."""

from __future__ import annotations

from tests.domains import device_of, uuid_of
from vgpu_hook.model import Found, VgpuRequest, new_assignment
from vgpu_hook.store import Store


def put_domain(store: Store, name: str, boot_id: str, parent: str | None) -> str:
    """Have a domain ask for a vGPU, and have one on `parent` if that is named; return its UUID."""
    own = uuid_of(name)
    request = VgpuRequest("0", "mtty-1")
    store.domains.set_requests(own, name, (request,))
    if parent is not None:
        found = Found("mdev", device_of(own), parent, "mtty-1", ())
        store.adopt(new_assignment(own, name, request, found, found.type, boot_id), "bench")
    return own
