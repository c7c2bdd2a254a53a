"""Which values a request may have: it may come from a tenant, and ends up in paths and queries.

Pure. Not for where they stand in the XML (domain.py).
"""

from __future__ import annotations

import re

from vgpu_hook.model import (
    FORK_POLICIES,
    PLACEMENTS,
    DomainXmlError,
    VgpuRequest,
    shell_word,
)

SLOT = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
PRINTABLE = re.compile(r"[^\x00-\x1f\x7f/]{1,128}\Z")
GPU = re.compile(r"[A-Za-z0-9_.:-]{1,64}\Z")
PARAM = r"[A-Za-z0-9_.-]+=[A-Za-z0-9_. -]*"
PARAMS = re.compile(rf"(?=.{{1,512}}\Z){PARAM}(, *{PARAM})*\Z")
"""name=value, name=value: what is written to the driver in one line."""
MAX_VGPUS = 64
KNOWN = ("name", "profile", "gpu", "fork", "display", "ramfb", "params", "placement")


def check_request(request: VgpuRequest, domain_name: str) -> VgpuRequest:
    """Return the request if its values are allowed; raise DomainXmlError if not."""
    checks = (
        ("name", request.slot, SLOT),
        ("profile", request.profile, PRINTABLE),
        ("gpu", request.gpu, GPU),
        ("params", request.params, PARAMS),
    )
    for attribute, value, allowed in checks:
        if value is not None and not allowed.match(value):
            raise not_allowed(domain_name, attribute, value)
    choices = (
        ("fork", request.fork, FORK_POLICIES),
        ("display", request.display, (None, "on", "off")),
        ("ramfb", request.ramfb, (None, "on", "off")),
        ("placement", request.placement, (None, *PLACEMENTS)),
    )
    for attribute, value, among in choices:
        if value not in among:
            raise not_allowed(domain_name, attribute, str(value))
    return request


def not_allowed(domain_name: str, attribute: str, value: str) -> DomainXmlError:
    """Return the error for a value, which names the domain and the attribute."""
    return DomainXmlError(
        f"domain {domain_name!r}: the request's {attribute}={value[:80]!r} is not allowed",
        f"run: virsh edit {shell_word(domain_name)}",
    )
