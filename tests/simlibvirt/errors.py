"""What the simulated libvirtd answers instead."""

from __future__ import annotations

import libvirt


class SimError(Exception):
    """libvirt's code (VIR_ERR_*) and its text."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def no_domain(asked: str) -> SimError:
    """`asked`: "uuid '...'" or "name '...'"."""
    text = f"Domain not found: no domain with matching {asked}"
    return SimError(libvirt.VIR_ERR_NO_DOMAIN, text)


def failed(text: str) -> SimError:
    return SimError(libvirt.VIR_ERR_OPERATION_FAILED, f"operation failed: {text}")


def invalid(text: str) -> SimError:
    """What can't be done to a domain in this state."""
    return SimError(libvirt.VIR_ERR_OPERATION_INVALID, f"Requested operation is not valid: {text}")
