"""Takes out of a text what tells where a host is in the network, for `vgpu-hook record`. Pure.

Messages are our own, but they quote what somebody has typed and what libvirt says: URIs, addresses,
names of hosts.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

UNKNOWN = "?"
SCHEME = re.compile(r"(qemu|test)(\+(unix|ssh|tcp|tls|ext|libssh2?))?\Z")
PATHS = ("", "/system", "/session", "/default")
"""All that is kept of a URI: a mistake in typing can put a host's name into any part of it."""

URI = re.compile(r"(?<![\w+.-])([A-Za-z][\w+.-]*)://([^\s'\",;()]*)")
LISTEN = re.compile(r"""(metrics\.listen: )(['"])(?:\\.|(?!\2).)*\2""")
"""What config_file.py says of a wrong one."""

MAC = re.compile(r"(?i)(?<![\w:])(?:[0-9a-f]{2}:){5}[0-9a-f]{2}(?![\w:])")
IP = re.compile(
    r"(?i)(?<![\w:.])(?:\d{1,3}(?:\.\d{1,3}){3}|[0-9a-f]*:[0-9a-f:.]*[0-9a-f:])(?![\w])"
)


def plain_uri(uri: str) -> str:
    """Return a libvirt URI with its scheme and path alone, `?` for what is not known of them."""
    scheme, found, rest = uri.partition("://")
    if not found:
        return f"{UNKNOWN}://{UNKNOWN}"
    _, slash, path = re.split(r"[?#]", rest, maxsplit=1)[0].partition("/")
    known_scheme = scheme if SCHEME.match(scheme) else UNKNOWN
    return f"{known_scheme}://{slash + path if slash + path in PATHS else UNKNOWN}"


class Hider:
    """Replaces addresses, and the names of the hosts that it is told of."""

    def __init__(self, uris: Iterable[str], host_names: Iterable[str]) -> None:
        """`uris` are libvirt's, as somebody has typed them: the hosts in them are hidden too."""
        self._uris = {uri: plain_uri(uri) for uri in uris if uri}
        names = {*host_names, *(name for uri in self._uris for name in _hosts(uri))}
        names |= {name.partition(".")[0] for name in names if not _is_ip(name)}
        longest_first = sorted(names - {"", "localhost"}, key=len, reverse=True)
        words = "|".join(map(re.escape, longest_first))
        self._names = re.compile(rf"(?<![\w.-])(?:{words})(?![\w-])") if words else None

    def text(self, text: str) -> str:
        """Return a sentence without them."""
        text = LISTEN.sub(rf"\1'{UNKNOWN}'", text)
        for uri, plain in self._uris.items():
            text = text.replace(uri, plain)
        text = URI.sub(lambda match: plain_uri(match[0]), text)
        text = MAC.sub("ADDRESS", text)
        text = IP.sub(lambda match: "ADDRESS" if _is_ip(match[0]) else match[0], text)
        return self._names.sub("HOST", text) if self._names is not None else text


def _hosts(uri: str) -> list[str]:
    """Return what may be a host's name in a URI: any word that has a dot, or follows // or @."""
    return re.findall(r"(?:(?<=//)|(?<=@))[\w.-]+|(?<![\w.-])[\w-]+(?:\.[\w-]+)+", uri)


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
