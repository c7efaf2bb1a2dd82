"""What the examples have in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent.parent
COMPOSE = ROOT / "example_project" / "compose.yaml"
DOCKERFILE = ROOT / "example_project" / "Dockerfile"
KUBERNETES = ROOT / "docs" / "deploy" / "kubernetes.yaml"
KEDA = ROOT / "docs" / "deploy" / "keda.yaml"
KEDA_PROMETHEUS = ROOT / "docs" / "monitoring" / "keda.yaml"
GRAFANA = ROOT / "docs" / "monitoring" / "grafana.json"


def documents(path: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def services() -> dict[str, Any]:
    found: dict[str, Any] = documents(COMPOSE)[0]["services"]
    return found


def of_kind(kind: str, name: str) -> dict[str, Any]:
    paths = (KUBERNETES, KEDA)
    (found,) = [
        document
        for path in paths
        for document in documents(path)
        if (document["kind"], document["metadata"]["name"]) == (kind, name)
    ]
    return found


def pod(deployment: str) -> dict[str, Any]:
    found: dict[str, Any] = of_kind("Deployment", deployment)["spec"]["template"]["spec"]
    return found


def container(deployment: str) -> dict[str, Any]:
    (found,) = pod(deployment)["containers"]
    return dict(found)
