"""What no schema knows: names that belong together, times that are long enough, and commands that do their work."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import django_rq
import pytest
from django.test import Client, override_settings
from django.utils.dateparse import parse_duration

from example_project import settings as example_settings
from tests.deploy.examples import (
    COMPOSE,
    DOCKERFILE,
    KEDA,
    KEDA_PROMETHEUS,
    KUBERNETES,
    ROOT,
    container,
    documents,
    of_kind,
    pod,
    services,
)
from tests.factories import tenant_queue, waiting_job
from tests.processes import environment, wait_until

WORKER = "shop-worker-imports"

STARTS = {"compose": services()["worker"]["command"], "kubernetes": container(WORKER)["command"]}

PROBES = {
    "compose": services()["worker"]["healthcheck"]["test"][1:],
    "startup": container(WORKER)["startupProbe"]["exec"]["command"],
    "liveness": container(WORKER)["livenessProbe"]["exec"]["command"],
}

LONGEST_JOB = max(queue["DEFAULT_TIMEOUT"] for queue in example_settings.RQ_QUEUES.values())


# --- the commands, with real workers ----------------------------------------------------------------------------------


def run(command: list[str]) -> list[str]:
    assert command[0] == "python"
    return [sys.executable, "-W", "ignore", *command[1:]]


def probe(command: list[str]) -> int:
    return subprocess.run(run(command), cwd=ROOT, env=environment(), capture_output=True, timeout=60).returncode


@pytest.mark.parametrize("example", STARTS)
def test_a_worker_starts_is_found_alive_by_each_probe_and_ends_when_told(example: str, transactional_db: None) -> None:
    django_rq.get_connection("default").flushdb()
    assert {probe(command) for command in PROBES.values()} == {1}, "the control: there is none yet"
    worker = subprocess.Popen(run(STARTS[example]), cwd=ROOT, env=environment())
    try:
        wait_until(lambda: probe(PROBES["startup"]) == 0, 60)
        assert {probe(command) for command in PROBES.values()} == {0}
        worker.terminate()
        assert worker.wait(timeout=60) == 0
    finally:
        worker.kill()
    assert {probe(command) for command in PROBES.values()} == {1}


# --- what belongs together --------------------------------------------------------------------------------------------


def test_workers_have_more_time_to_end_than_a_job_may_take() -> None:
    grace = parse_duration(services()["worker"]["stop_grace_period"].removesuffix("s"))
    assert grace is not None
    assert grace.total_seconds() > LONGEST_JOB
    assert pod(WORKER)["terminationGracePeriodSeconds"] > LONGEST_JOB


def test_a_signal_reaches_the_worker() -> None:
    for command in (*STARTS.values(), services()["web"]["command"]):
        assert isinstance(command, list), "a text would be run by a shell, which keeps the signal to itself"
    assert re.search(r'^CMD \["python", "manage.py", "rqworker"', DOCKERFILE.read_text(), re.MULTILINE)


def test_somebody_reaps_the_processes_that_jobs_leave_behind() -> None:
    """A worker that is the first process of its container does not: they would count for it until it ends."""
    assert services()["worker"]["init"]
    assert pod(WORKER)["shareProcessNamespace"]


def test_each_service_waits_for_servers_that_can_tell_whether_they_are_there() -> None:
    for service in services().values():
        for name, how in service.get("depends_on", {}).items():
            is_healthy = how["condition"] == "service_healthy"
            assert is_healthy == ("healthcheck" in services()[name])


def test_the_image_has_each_file_that_it_copies_and_the_settings_read_each_variable() -> None:
    for paths in re.findall(r"^COPY (.+) \S+$", DOCKERFILE.read_text(), re.MULTILINE):
        assert all((ROOT / path).exists() for path in paths.split())
    documented = set(re.findall(r"``(\w+)``", example_settings.__doc__ or "")) | {"ALLOWED_HOSTS", "PARTNER_TOKEN"}
    assert services()["worker"]["environment"].keys() <= documented


@pytest.mark.parametrize("path", [KEDA, KEDA_PROMETHEUS], ids=lambda path: path.parent.name)
def test_keda_scales_the_workers_of_the_example_and_nobody_else_does(path: Any) -> None:
    (scaled,) = [document["spec"] for document in documents(path) if document["kind"] == "ScaledObject"]
    workers = of_kind("Deployment", scaled["scaleTargetRef"]["name"])["spec"]
    assert "replicas" not in workers
    assert scaled["minReplicaCount"] >= 1, "somebody has to sweep"


def test_what_machines_ask_by_http_is_answered_there_and_not_by_a_redirect() -> None:
    """Each address of a view of ours in the manual, those of the probes, and that of KEDA."""
    pages = {page.name: page.read_text() for page in (ROOT / "docs" / "how-to").glob("*.md")}
    (exempt,) = re.findall(r"^SECURE_REDIRECT_EXEMPT = \[(.+)\]$", pages["containers.md"], re.MULTILINE)
    asked = re.findall(r'^path\("(.+)", tenant_slots\.', "".join(pages.values()), re.MULTILINE)
    web = container("shop-web")
    asked += [web[probe]["httpGet"]["path"].lstrip("/") for probe in ("readinessProbe", "livenessProbe")]
    asked += [urlsplit(url).path.lstrip("/") for url in re.findall(r"\burl: (\S+)", KEDA.read_text())]
    assert len(asked) >= 6
    patterns = re.findall(r'r"(.+?)"', exempt)
    assert {path for path in asked if not any(re.search(pattern, path) for pattern in patterns)} == set()
    assert [pattern for pattern in patterns if not any(re.search(pattern, path) for path in asked)] == []


def test_a_cluster_can_see_that_the_image_does_not_run_as_root() -> None:
    """By ``runAsNonRoot`` Kubernetes starts no container whose image names its user by a word."""
    (user,) = re.findall(r"^USER (.+)$", DOCKERFILE.read_text(), re.MULTILINE)
    assert user.isdigit()
    assert int(user) > 0
    assert f"useradd --uid {user} " in DOCKERFILE.read_text()
    deployments = [one for one in documents(KUBERNETES) if one["kind"] in ("Deployment", "Job")]
    pods = [one["spec"]["template"]["spec"]["containers"] for one in deployments]
    assert {one["securityContext"]["runAsNonRoot"] for containers in pods for one in containers} == {True}


@pytest.mark.parametrize("path", [KEDA, KEDA_PROMETHEUS], ids=lambda path: path.parent.name)
def test_keda_asks_by_a_name_that_is_known_in_its_own_namespace(path: Path) -> None:
    """Its operator asks, which is in none of the project's."""
    (scaled,) = [document["spec"] for document in documents(path) if document["kind"] == "ScaledObject"]
    (metadata,) = [trigger["metadata"] for trigger in scaled["triggers"]]
    host = urlsplit(metadata.get("url") or metadata["serverAddress"]).hostname or ""
    service, namespace, kind = host.split(".")
    assert (kind, bool(namespace)) == ("svc", True)
    if path == KEDA:
        assert of_kind("Service", service)


def from_keda(request: Any) -> bool:
    return request.headers.get("Authorization") == "Bearer secret"


@override_settings(TENANT_SLOTS={"MAY_VIEW_METRICS": "tests.deploy.test_examples.from_keda"})
def test_keda_finds_its_figure_where_it_looks_for_it(client: Client, db: None) -> None:
    (trigger,) = of_kind("ScaledObject", WORKER)["spec"]["triggers"]
    metadata, query = trigger["metadata"], trigger["metadata"]["url"].partition("?")[2]
    waiting_job(tenant_queue())
    assert metadata["authMode"] == "bearer"
    answer = client.get(f"/autoscaling/?{query}", headers={"Authorization": "Bearer secret"}).json()
    for name in metadata["valueLocation"].split("."):
        answer = answer[name]
    assert answer == 1
    secret = of_kind("TriggerAuthentication", trigger["authenticationRef"]["name"])["spec"]["secretTargetRef"]
    assert [one["parameter"] for one in secret] == ["token"]


# --- the whole, where containers can be run ---------------------------------------------------------------------------


def compose(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["docker", "compose", "--file", str(COMPOSE), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=900)


def there_is_an_engine() -> bool:
    try:
        engine = subprocess.run(["docker", "info"], capture_output=True, timeout=30).returncode
        return engine == 0 and compose("version").returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def in_service(name: str, *command: str) -> bool:
    return compose("exec", "-T", name, *command).returncode == 0


def test_compose_brings_everything_up_in_good_health() -> None:
    if not there_is_an_engine():
        pytest.skip("no container engine answers to docker compose, so compose.yaml was not run")
    try:
        done = compose("up", "--build", "--detach")
        assert done.returncode == 0, done.stderr
        for name in ("web", "worker"):
            check = services()[name]["healthcheck"]["test"][1:]
            wait_until(lambda name=name, check=check: in_service(name, *check), 120, f"{name} is not in good health")
    finally:
        compose("down", "--volumes", "--timeout", "30")
