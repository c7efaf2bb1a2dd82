"""What a job's process has recorded reaches its collector, and costs the job neither time nor its outcome."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tenant_slots.models import State, TenantQueue
from tests.contrib import jobs
from tests.contrib.traces import ONLY_OTEL, ONLY_SENTRY
from tests.factories import fresh
from tests.processes import Workers, wait_until

pytestmark = pytest.mark.django_db(transaction=True)

FORKING = "tenant_slots.workers.TenantWorker"
PREFORK = "tenant_slots.workers.TenantPreforkWorker"
SIMPLE = "tenant_slots.workers.TenantSimpleWorker"
SPAWNING = "rq.worker.SpawnWorker"

NEVER_BY_ITSELF = {"OTEL_BSP_SCHEDULE_DELAY": str(3600 * 1000)}


@pytest.fixture
def spans(workers: Workers, tmp_path: Path) -> Path:
    """Where workers write the spans that they send."""
    path = tmp_path / "spans"
    workers.variables |= {"SPANS": str(path), **NEVER_BY_ITSELF, "TEST_TENANT_SLOTS": json.dumps(ONLY_OTEL)}
    return path


def sent_to(path: Path) -> list[dict[str, Any]]:
    told = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [one for one in told if one["sdk"] == "opentelemetry"]


# --- what was recorded is sent ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        *[(kind, ["--skip-checks"]) for kind in ("rq.Worker", "rq.SimpleWorker", SPAWNING, FORKING, PREFORK, SIMPLE)],
        ("rq.Worker", []),
        (SPAWNING, []),
    ],
)
def test_nothing_is_lost_in_any_worker_whatever_it_has_loaded_when_it_started(
    workers: Workers, spans: Path, kind: str, arguments: list[str]
) -> None:
    """System checks load what the settings name; a spawned process loads everything itself."""
    made = [jobs.process.enqueue("acme") for _ in range(2)]
    assert workers.run("--burst", *arguments, worker_class=kind).returncode == 0
    assert [one["name"] for one in sent_to(spans)] == [job.task for job in made]


@pytest.mark.parametrize("kind", ["rq.SimpleWorker", SIMPLE])
def test_nothing_is_lost_in_a_pool(workers: Workers, spans: Path, kind: str) -> None:
    made = [jobs.process.enqueue("acme") for _ in range(2)]
    assert workers.run_pool("--burst", "--skip-checks", worker_class=kind).returncode == 0
    assert [one["name"] for one in sent_to(spans)] == [job.task for job in made]


def test_a_work_horse_that_goes_on_sends_in_the_background_and_the_rest_when_it_parts(
    workers: Workers, spans: Path
) -> None:
    (worker,) = workers.start(worker_class=PREFORK)
    made = [jobs.process.enqueue("acme") for _ in range(3)]
    wait_until(lambda: all(fresh(job).state == State.FINISHED for job in made))
    assert sent_to(spans) == [], "nobody waits at the end of each job"
    worker.terminate()
    assert worker.wait(30) == 0
    assert [one["name"] for one in sent_to(spans)] == [job.task for job in made]


@pytest.mark.parametrize("kind", [PREFORK, SIMPLE])
def test_a_failure_is_told_before_the_next_job_begins(workers: Workers, spans: Path, kind: str) -> None:
    workers.start(worker_class=kind)
    jobs.process.enqueue("acme", "no such feed")
    wait_until(lambda: [one["status"] for one in sent_to(spans)] == ["ERROR"])


# --- and it costs the job nothing -------------------------------------------------------------------------------------


@pytest.fixture
def collector(workers: Workers, spans: Path, tmp_path: Path) -> Iterator[Path]:
    """A folder: of a collector that is away until `back` is there; `asked` is, once somebody waits for it."""
    workers.variables["COLLECTOR_IS_AWAY"] = str(tmp_path)
    yield tmp_path
    (tmp_path / "back").touch()


ONE_JOB_EACH = {**ONLY_OTEL, "JOBS_PER_HORSE": 1}


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("rq.Worker", "no such feed"),
        (SPAWNING, ""),
        (FORKING, ""),
        (FORKING, "no such feed"),
        (PREFORK, ""),
        (SIMPLE, "no such feed"),
    ],
)
def test_a_job_has_ended_and_its_slot_is_free_while_its_process_waits_for_a_collector(
    workers: Workers, collector: Path, kind: str, error: str
) -> None:
    workers.variables["TEST_TENANT_SLOTS"] = json.dumps(ONE_JOB_EACH)
    job = jobs.process.enqueue("acme", error)
    workers.start(worker_class=kind)
    wait_until((collector / "asked").exists)
    wait_until(lambda: fresh(job).has_ended)
    assert TenantQueue.objects.get().current_job == 0
    assert (job.state, job.error_class) == ((State.FAILED, "ValueError") if error else (State.FINISHED, None))


def test_a_worker_waits_two_seconds_for_a_collector_that_is_away(workers: Workers, collector: Path) -> None:
    """OpenTelemetry's own limit is none: it ends when the exporter gives up, which this one never does."""
    made = [jobs.process.enqueue("acme") for _ in range(2)]
    assert workers.run("--burst", worker_class=FORKING).returncode == 0
    assert [fresh(job).state for job in made] == [State.FINISHED] * 2


def test_a_job_has_ended_while_its_process_waits_for_a_sentry_that_does_not_answer(
    workers: Workers, spans: Path, tmp_path: Path
) -> None:
    workers.variables |= {"SENTRY_IS_AWAY": str(tmp_path), "TEST_TENANT_SLOTS": json.dumps(ONLY_SENTRY)}
    job = jobs.process.enqueue("acme")
    workers.start(worker_class=FORKING)
    wait_until((tmp_path / "asked").exists)
    wait_until(lambda: fresh(job).has_ended)
    assert (job.state, job.error) == (State.FINISHED, "")


def test_a_work_horse_that_still_sends_takes_the_next_job(workers: Workers, collector: Path) -> None:
    """As the thread that does so is no job's."""
    before = jobs.process.enqueue("acme")
    jobs.process.enqueue("acme", "no such feed")
    after = jobs.process.enqueue("acme")
    assert workers.run("--burst", worker_class=PREFORK).returncode == 0
    assert fresh(before).result == fresh(after).result is not None
