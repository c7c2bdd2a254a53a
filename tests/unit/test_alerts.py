"""The alert rules, as Prometheus evaluates them: when one fires, and when it does not."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from .test_metrics import PROMTOOL, RULES

SUCCESS = "reconcile_last_success_timestamp_seconds"
COLLECTION = "collection_timestamp_seconds"
RECONCILE_INTERVAL = "reconcile_interval_seconds"
COLLECTION_INTERVAL = "collection_interval_seconds"
START = "start_time_seconds"

STALE, SILENT, RESTARTS = "VgpuHookReconcileStale", "VgpuHookDaemonSilent", "VgpuHookDaemonRestarts"
GONE = "VgpuHookDaemonGone"

EVERY_MINUTE = "0+60x300"
ONCE = "0x300"
STARTED_ANEW = " ".join(str(minute // 2 * 120) for minute in range(300))
"""Each two minutes, as by systemd's watchdog."""


class Case(NamedTuple):
    name: str
    series: dict[str, str]
    """One value a minute, in promtool's notation, of what differs from a daemon that is well."""
    firing: dict[str, set[str]]
    """At a time: the alerts."""


WELL = {
    "build_info": "1x300",
    START: ONCE,
    SUCCESS: EVERY_MINUTE,
    COLLECTION: EVERY_MINUTE,
    RECONCILE_INTERVAL: "60x300",
    COLLECTION_INTERVAL: "30x300",
}

CASES = (
    Case("it is well", {}, {"10m": set(), "25m": set(), "200m": set()}),
    Case("it never reconciles", {SUCCESS: ""}, {"18m": set(), "25m": {STALE}, "200m": {STALE}}),
    Case("it never collects", {COLLECTION: ""}, {"22m": set(), "30m": {SILENT}, "200m": {SILENT}}),
    Case("it reconciled once", {SUCCESS: ONCE}, {"18m": set(), "25m": {STALE}, "200m": {STALE}}),
    Case("it collected once", {COLLECTION: ONCE}, {"22m": set(), "30m": {SILENT}}),
    Case(
        "the watchdog starts it again and again, and it never reconciles",
        {SUCCESS: "", START: STARTED_ANEW},
        {"5m": set(), "15m": {RESTARTS}, "25m": {RESTARTS, STALE}, "200m": {RESTARTS, STALE}},
    ),
    Case(
        "the watchdog starts it again and again, and it does nothing",
        {SUCCESS: "", COLLECTION: "", START: STARTED_ANEW},
        {"30m": {RESTARTS, STALE, SILENT}, "200m": {RESTARTS, STALE, SILENT}},
    ),
    Case(
        "it reconciled before it was started anew, and not since",
        {SUCCESS: "0+60x10 _x290", START: "0x10 660x290"},
        {"20m": set(), "35m": {STALE}, "200m": {STALE}},
    ),
    Case(
        "it was started three times and is well",
        {START: "0x10 660x10 1320x10 1980x270"},
        {"40m": set(), "60m": set()},
    ),
    Case(
        "it is to reconcile each hour, and does",
        {RECONCILE_INTERVAL: "3600x300", SUCCESS: "0x59 3600x59 7200x59 10800x59 14400x59"},
        {"50m": set(), "100m": set(), "200m": set()},
    ),
    Case(
        "it is to reconcile each hour, and does not",
        {RECONCILE_INTERVAL: "3600x300", SUCCESS: ONCE},
        {"170m": set(), "200m": {STALE}},
    ),
    Case(
        "it is to collect each hour, and the textfile is as late",
        {
            COLLECTION_INTERVAL: "3600x300",
            COLLECTION: "0x59 3600x59 7200x59 10800x59 14400x59",
            SUCCESS: "0x59 3540x59 7140x59 10740x59 14340x59",
        },
        {"59m": set(), "119m": set(), "200m": set()},
    ),
    Case(
        "it was stopped, and its textfile is gone",
        {name: f"{values.removesuffix('300')}120" for name, values in WELL.items()},
        {"100m": set(), "130m": set(), "150m": {GONE}},
    ),
    Case(
        "it was stopped for half an hour",
        {
            "build_info": "1x10 _x29 1x260",
            START: "0x10 _x29 2400x260",
            SUCCESS: "0+60x10 _x31 2520+60x258",
            COLLECTION: "0+60x10 _x31 2520+60x258",
            RECONCILE_INTERVAL: "60x10 _x29 60x260",
            COLLECTION_INTERVAL: "30x10 _x29 30x260",
        },
        {"30m": set(), "41m": set(), "45m": set(), "100m": set()},
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_alerts_fire_when_they_should(case: Case, tmp_path: Path) -> None:
    series = [
        {"series": f'vgpu_hook_{name}{{instance="host",job="node"}}', "values": values}
        for name, values in (WELL | case.series).items()
        if values
    ]
    asked = 'count by (alertname) (ALERTS{alertstate="firing"})'
    questions = [
        {
            "expr": asked,
            "eval_time": time,
            "exp_samples": [
                {"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(names)
            ],
        }
        for time, names in case.firing.items()
    ]
    test = {"interval": "1m", "input_series": series, "promql_expr_test": questions}
    whole = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]}
    file = tmp_path / "test.yml"  # JSON is YAML
    file.write_text(json.dumps(whole))
    command = [str(PROMTOOL), "test", "rules", str(file)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
