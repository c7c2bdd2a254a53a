"""Metrics: what is printed is Prometheus's format, and rules and dashboard name what there is."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families as parse

from vgpu_hook import metrics
from vgpu_hook.exposition import GAUGE, Family, Sample, text_of
from vgpu_hook.metrics import FAMILIES, Tally
from vgpu_hook.model import Assignment, Parent, VgpuType
from vgpu_hook.reconcile import Finding
from vgpu_hook.store_devices import Failure

REPOSITORY = Path(__file__).resolve().parents[2]
RULES = REPOSITORY / "packaging" / "prometheus" / "vgpu-hook.rules.yml"
DASHBOARD = REPOSITORY / "packaging" / "grafana" / "vgpu-hook.json"
PROMTOOL = Path(sys.executable).with_name("promtool")
DOCS = REPOSITORY / "docs" / "metrics.md"

GPU = "0000:41:00.0"
VFS = ("0000:41:00.4", "0000:41:00.5", "0000:41:00.6")


def parent(vf: str, *, carries: bool = False) -> Parent:
    kind = VgpuType("nvidia-1148", "NVIDIA L40S-2Q", "", "vfio-pci", int(not carries), 0, 2048)
    kind = kind._replace(in_use=int(carries))
    return Parent("vendor-vfio", vf, GPU, (kind,), (vf,) if carries else ())


def row(device: str, state: str) -> Assignment:
    where = ("vendor-vfio", device, device, "nvidia-1148", "1148")
    return Assignment(1, "uuid", "secret-name", "0", *where, state, "boot", "", "")


def failure(name: str) -> Failure:
    return Failure(VFS[2], "create", name, "0", name, "", "EIO")


def everything() -> str:
    """One sample of each metric, at least."""
    tally = Tally()
    tally.call("prepare", "done", 0.2)
    tally.call("prepare", "refused", 40)
    tally.call("stopped", "failed", 0.01)
    tally.event("defined", done=True)
    tally.reconciled([Finding("a", "b", "kept", ""), Finding("a", "b", "left alone", "")])
    tally.reconcile_failed()
    tally.collected(done=True)
    parents = (parent(VFS[0], carries=True), parent(VFS[1], carries=True), parent(VFS[2]))
    rows = [row(VFS[0], "retained")]
    host = metrics.of_host(parents, rows, [failure("a"), failure("b")])
    both = [metrics.of_store(usable=True), *metrics.of_settings(60, 30)]
    samples = [*tally.samples(connected=True), *host, *both]
    return text_of(FAMILIES, samples)


def families() -> dict[str, Metric]:
    return {family.name: family for family in parse(everything())}


def value(name: str, /, **labels: str) -> float:
    found = [
        sample.value
        for family in families().values()
        for sample in family.samples
        if sample.name == name and sample.labels == labels
    ]
    assert len(found) == 1, (name, labels, found)
    return float(found[0])


def test_all_metrics_are_there_with_their_types() -> None:
    found = families()
    expected = {name.removesuffix("_total"): family for name, family in FAMILIES.items()}
    assert found.keys() == expected.keys()
    for name, family in expected.items():
        assert found[name].type == family.kind
        assert found[name].documentation == family.help


def test_names_keep_prometheus_rules() -> None:
    """prometheus.io/docs/practices/naming."""
    for name, family in FAMILIES.items():
        assert re.fullmatch(r"vgpu_hook_[a-z_]+", name)
        assert name.endswith("_total") == (family.kind == "counter")
        assert not re.search(r"(milli|mib|_ms|_kb|minutes|percent)", name)


def test_no_label_names_a_domain_or_a_device() -> None:
    text = everything()
    assert "secret-name" not in text
    assert not any(vf in text for vf in VFS)
    labels = {key for f in families().values() for s in f.samples for key in s.labels}
    bounded = {"action", "kind", "le", "operation", "outcome", "state", "use", "version"}
    assert labels == bounded | {"gpu", "name", "profile"}


def test_vgpus_are_counted_by_state() -> None:
    assert value("vgpu_hook_vgpus", state="retained") == 1
    assert value("vgpu_hook_vgpus", state="unrecorded") == 1
    assert value("vgpu_hook_vgpus", state="in_use") == 0
    assert value("vgpu_hook_orphaned_vgpus") == 1
    assert value("vgpu_hook_quarantined_vfs", gpu=GPU) == 1
    labels = {"gpu": GPU, "profile": "nvidia-1148", "name": "NVIDIA L40S-2Q"}
    assert value("vgpu_hook_free_vgpus", **labels) == 0  # its framebuffer is taken
    assert value("vgpu_hook_gpu_framebuffer_bytes", gpu=GPU, use="used") == 2 * 2048 * (1 << 20)


def test_calls_are_counted_and_timed() -> None:
    assert value("vgpu_hook_calls_total", operation="prepare", outcome="refused") == 1
    assert value("vgpu_hook_calls_total", operation="stopped", outcome="failed") == 1
    assert value("vgpu_hook_calls_total", operation="release", outcome="done") == 0
    name = "vgpu_hook_call_duration_seconds"
    assert value(f"{name}_count", operation="prepare") == 2
    assert value(f"{name}_sum", operation="prepare") == pytest.approx(40.2)
    buckets = {
        float(sample.labels["le"]): sample.value
        for sample in families()[name].samples
        if sample.name == f"{name}_bucket" and sample.labels["operation"] == "prepare"
    }
    assert list(buckets) == sorted(buckets)
    assert buckets[0.1] == 0
    assert buckets[0.25] == buckets[30.0] == 1
    assert buckets[math.inf] == 2


def test_an_operation_of_no_known_name_makes_no_new_series() -> None:
    tally = Tally()
    for number in range(9):
        tally.call(f"made-up-{number}", "done", 1)
    text = text_of(FAMILIES, tally.samples(connected=False))
    assert "made-up" not in text
    assert 'vgpu_hook_calls_total{operation="other",outcome="done"} 9' in text


@pytest.mark.parametrize("odd", ['a"b', "a\\b", "a\nb", "a}b", "ä ", "\udcff"])
def test_odd_names_of_types_are_quoted(odd: str) -> None:
    text = text_of({"x": Family(GAUGE, "a\\b\nc")}, [Sample("x", (("name", odd),), 0.5)])
    ((sample,),) = (family.samples for family in parse(text))
    assert sample.labels["name"] == odd.encode("utf-8", "replace").decode()
    assert sample.value == 0.5


# --- rules and dashboard ---


def names_in(text: str) -> set[str]:
    return set(re.findall(r"\bvgpu_hook_[a-z_]+", text))


def known() -> Iterator[str]:
    for name, family in FAMILIES.items():
        yield name
        if family.kind == "histogram":
            yield from (f"{name}{suffix}" for suffix in ("_bucket", "_sum", "_count"))


def expressions() -> list[str]:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel["targets"]]


def test_rules_and_dashboard_name_metrics_that_there_are() -> None:
    of_rules = names_in(RULES.read_text())
    of_dashboard = names_in(DASHBOARD.read_text())
    assert len(of_rules) > 8
    assert len(of_dashboard) > 8
    assert of_rules | of_dashboard <= set(known())


def test_labels_in_expressions_are_those_of_the_metrics() -> None:
    labels = {
        f"{name}{suffix}": {key for sample in family.samples for key in sample.labels}
        for name, family in families().items()
        for suffix in ("", "_total", "_bucket")
    }
    for text in (RULES.read_text(), *expressions()):
        for name, selector in re.findall(r"(vgpu_hook_[a-z_]+)\{([^}]*)\}", text):
            asked = set(re.findall(r"(\w+)\s*=", selector)) - {"instance"}
            assert asked <= labels[name], (name, asked)


def test_every_alert_says_what_it_is_and_what_to_run() -> None:
    text = RULES.read_text()
    alerts = text.split("- alert: ")[1:]
    assert len(alerts) >= 10
    for alert in alerts:
        for key in ("summary:", "description:", "runbook:", "severity:"):
            assert alert.count(key) == 1, (key, alert)


def test_promtool_accepts_the_rules() -> None:
    done = subprocess.run([PROMTOOL, "check", "rules", RULES], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_promtool_accepts_the_metrics() -> None:
    """Its lint: help texts, suffixes, units."""
    command = [str(PROMTOOL), "check", "metrics"]
    done = subprocess.run(command, input=everything(), capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_promtool_accepts_the_queries_of_the_dashboard(tmp_path: Path) -> None:
    found = [e.replace("$__rate_interval", "5m").replace("$instance", ".*") for e in expressions()]
    rules = [{"record": f"panel:{n}", "expr": text} for n, text in enumerate(found)]
    file = tmp_path / "panels.yml"  # JSON is YAML
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    done = subprocess.run([PROMTOOL, "check", "rules", file], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_metric_is_documented() -> None:
    assert names_in(DOCS.read_text()) == set(FAMILIES)


CONFINED = """
import ctypes, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
# As RestrictAddressFamilies=AF_UNIX: socket(2) of another family fails with EAFNOSUPPORT (97).
code = [(0x20, 0, 0, 0), (0x15, 0, 3, int(sys.argv[1])), (0x20, 0, 0, 16), (0x15, 1, 0, 1),
        (0x06, 0, 0, 0x50000 | 97), (0x06, 0, 0, 0x7FFF0000)]
text = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))
program = struct.pack("HxxxxxxP", len(code), ctypes.addressof(text))
assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
assert libc.prctl(22, 2, ctypes.c_char_p(program), 0, 0) == 0  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
from vgpu_hook import metrics_http, model
try:
    metrics_http.serve("127.0.0.1", 9843, str)
except model.VgpuError as error:
    print(error.hint)
"""


def test_where_the_unit_forbids_http_the_page_is_named_that_says_how_to_allow_it() -> None:
    socket_call = {"x86_64": "41", "aarch64": "198"}[os.uname().machine]
    command = [sys.executable, "-c", CONFINED, socket_call]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (
        done.stdout == "the unit allows no network by itself; see CONFINEMENT: man vgpu-hookd\n"
    ), done.stderr
    page = (Path(__file__).parents[2] / "docs/man/vgpu-hookd.8.rst").read_text()
    confinement = page.partition("\nCONFINEMENT\n")[2].partition("\nFILES\n")[0]
    settings = (Path(__file__).parents[2] / "etc/vgpu-hook.toml").read_text()
    for line in ("RestrictAddressFamilies=AF_INET AF_INET6", "IPAddressAllow=localhost"):
        assert line in confinement
        assert line in settings
