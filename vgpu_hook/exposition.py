"""Prometheus's text format 0.0.4, as node_exporter's textfile collector reads it too. Pure.

prometheus.io/docs/instrumenting/exposition_formats. Written here rather than by prometheus_client:
that is a dependency on every host and 73 ms of the daemon's start, for these few lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

COUNTER = "counter"
GAUGE = "gauge"
HISTOGRAM = "histogram"


class Family(NamedTuple):
    """What a metric is; `help` is for people."""

    kind: str
    help: str


class Sample(NamedTuple):
    """One value. `suffix` is what a histogram's samples have behind the family's name."""

    family: str
    labels: tuple[tuple[str, str], ...]
    value: float
    suffix: str = ""


def text_of(families: Mapping[str, Family], samples: Iterable[Sample]) -> str:
    """Return the samples as text, by family in the order of `families`; none without samples."""
    by_family: dict[str, list[Sample]] = {}
    for sample in samples:
        by_family.setdefault(sample.family, []).append(sample)
    lines = []
    for name, family in families.items():
        if name in by_family:
            lines.append(f"# HELP {name} {_escaped(family.help)}")
            lines.append(f"# TYPE {name} {family.kind}")
            lines += map(_line, by_family[name])
    return "".join(f"{line}\n" for line in lines)


def number(value: float) -> str:
    """Return a value as Go's ParseFloat reads it."""
    return str(int(value)) if value == int(value) else repr(float(value))


def _line(sample: Sample) -> str:
    quoted = (f'{key}="{_quoted(value)}"' for key, value in sample.labels)
    labels = f"{{{','.join(quoted)}}}" if sample.labels else ""
    return f"{sample.family}{sample.suffix}{labels} {number(sample.value)}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _quoted(text: str) -> str:
    return _escaped(text.encode("utf-8", "replace").decode()).replace('"', r"\"")
