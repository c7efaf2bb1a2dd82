"""The dashboard, the alerts and the example for KEDA ask for metrics that there are."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from tenant_slots.contrib.prometheus import COUNTERS, GAUGES, HISTOGRAMS

ROOT = Path(__file__).parent.parent.parent
MONITORING = ROOT / "docs" / "monitoring"
DASHBOARD = json.loads((MONITORING / "grafana.json").read_text())
ALERTS = yaml.safe_load((MONITORING / "alerts.yaml").read_text())
KEDA = yaml.safe_load((MONITORING / "keda.yaml").read_text())

LABELS = {
    **{f"tenant_slots_{name}": labels for name, (_, labels) in GAUGES.items()},
    **{f"tenant_slots_{name}_total": labels for name, (_, labels) in COUNTERS.items()},
    **{f"tenant_slots_{name}_bucket": (*labels, "le") for name, (_, labels) in HISTOGRAMS.items()},
}

SELECTOR = re.compile(r"\b(tenant_slots_\w+)(?:\{([^}]*)\})?")


def expressions() -> dict[str, str]:
    found = {f"alert {rule['alert']}": rule["expr"] for group in ALERTS["groups"] for rule in group["rules"]}
    for panel in DASHBOARD["panels"]:
        found |= {f"panel {panel['title']} {target['refId']}": target["expr"] for target in panel["targets"]}
    return found | {"KEDA": KEDA["spec"]["triggers"][0]["metadata"]["query"]}


EXPRESSIONS = expressions()


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_each_expression_asks_for_metrics_and_labels_that_are_exported(name: str) -> None:
    selectors = SELECTOR.findall(EXPRESSIONS[name])
    assert selectors
    for metric, matchers in selectors:
        assert metric in LABELS, f"{metric} is not exported"
        asked = {label.strip() for label in re.findall(r"(\w+)\s*=~?", matchers)}
        assert asked <= {*LABELS[metric]}, f"{metric} has no such label"


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_no_expression_adds_up_what_several_processes_tell(name: str) -> None:
    """Each of them tells all of it."""
    for before, _, _ in re.findall(r"(\w+)(?: by \([^)]*\))? ?\((?:\w+\()?(tenant_slots_\w+)(\W)", EXPRESSIONS[name]):
        assert before == "max", EXPRESSIONS[name]


def test_each_metric_is_on_the_dashboard() -> None:
    shown = {
        metric for name, text in EXPRESSIONS.items() if name[:5] == "panel" for metric, _ in SELECTOR.findall(text)
    }
    assert set(LABELS) - shown == set()


def test_the_dashboard_has_what_grafana_asks_of_one() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert {"title", "uid", "schemaVersion", "panels", "templating", "time"} <= DASHBOARD.keys()
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    assert variables == {"datasource", "queue"}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(panels)))
    assert used - {"__rate_interval"} <= variables
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        assert all({"refId", "expr", "legendFormat"} <= target.keys() for target in panel["targets"])
    assert not [(a["title"], b["title"]) for a, b in combinations(panels, 2) if overlap(a["gridPos"], b["gridPos"])]


def overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
    above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
    return not (beside or above)


SLOW = [f"tenant_slots_{name}" for name in ("starts_total", "ends_total", *(f"{name}_bucket" for name in HISTOGRAMS))]
"""Of what the sweep counts once a minute."""


def test_no_panel_looks_for_what_is_counted_once_a_minute_in_less_than_two() -> None:
    """A window without a count would be a gap, or a rate of 0. Grafana's $__rate_interval is at least the interval."""
    slow = [panel for panel in DASHBOARD["panels"] if any(name in json.dumps(panel["targets"]) for name in SLOW)]
    assert {panel["title"] for panel in slow} == {"Start delay", "Run time", "Starts and ends"}
    assert {panel.get("interval") for panel in slow} == {"2m"}


def test_a_rate_within_two_minutes_is_there_whenever_it_is_asked_for(tmp_path: Path) -> None:
    """And the control: within the minute that Grafana takes by itself, scraping every 15 seconds, it is not."""
    (tmp_path / "rates_test.yaml").write_text(RATES_TEST)
    done = promtool("test", "rules", str(tmp_path / "rates_test.yaml"))
    assert done.returncode == 0, done.stdout + done.stderr


RATES_TEST = """
tests:
  - interval: 15s
    input_series:
      - series: counted
        values: 0x4 60x3 120x4 180x3 240x3 300x4 360x3 420x3 480x4 540x3
    promql_expr_test:
      - expr: min_over_time(rate(counted[2m15s])[6m:15s]) > bool 0
        eval_time: 9m
        exp_samples: [{labels: "{}", value: 1}]
      - expr: min_over_time(rate(counted[1m])[6m:15s]) > bool 0
        eval_time: 9m
        exp_samples: [{labels: "{}", value: 0}]
"""
"""A scrape every 15 seconds, and a count every 60 to 75."""


def test_each_alert_has_a_test_in_which_it_fires() -> None:
    tests = yaml.safe_load((MONITORING / "alerts_test.yaml").read_text())["tests"]
    fired = {one["alertname"] for test in tests for one in test["alert_rule_test"] if one["exp_alerts"]}
    assert fired == {rule["alert"] for group in ALERTS["groups"] for rule in group["rules"]}


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    found = shutil.which("promtool")
    if found is None:
        missing = "promtool is not installed, so the alerts were not run: apt-get install prometheus"
        pytest.fail(missing) if os.environ.get("REQUIRE_PROMTOOL") else pytest.skip(missing)
    return subprocess.run([found, *arguments], cwd=MONITORING, capture_output=True, text=True, timeout=60)


def test_promtool_runs_the_alerts_as_their_tests_expect() -> None:
    done = promtool("test", "rules", "alerts_test.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_control_promtool_tells_an_alert_that_does_not_fire(tmp_path: Path) -> None:
    for file in ("alerts.yaml", "alerts_test.yaml"):
        text = (MONITORING / file).read_text()
        (tmp_path / file).write_text(text.replace("tenant_slots_jobs_runnable)", "tenant_slots_jobs_runable)"))
    assert promtool("test", "rules", str(tmp_path / "alerts_test.yaml")).returncode == 1


def test_promtool_finds_nothing_wrong_with_the_rules() -> None:
    done = promtool("check", "rules", "alerts.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_keda_scales_on_what_workers_could_do() -> None:
    """Not on the backlog, of which limits hold back any number; and never to none while jobs run."""
    (trigger,) = KEDA["spec"]["triggers"]
    query: Any = trigger["metadata"]["query"]
    assert trigger["type"] == "prometheus"
    assert {"serverAddress", "query", "threshold"} <= trigger["metadata"].keys()
    assert "tenant_slots_jobs_runnable" in query
    assert re.search(r'state=~"queued\|running"', query)
    assert "waiting" not in query
    assert KEDA["spec"]["minReplicaCount"] >= 1, "somebody has to sweep"
    assert trigger["metadata"].get("ignoreNullValues") == "false", "else metrics that are missing count as 0"
    fallback = KEDA["spec"].get("fallback", {})
    assert fallback.get("failureThreshold"), "else those that have run so far are all there are while nothing is known"
    assert fallback.get("replicas") >= 1
    assert fallback.get("behavior") == "currentReplicasIfHigher", "else those that have more to do are taken away"
