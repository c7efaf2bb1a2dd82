"""The order of tenants hears that a tenant leaves it while the work-horse runs the job; others may be admitted then."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import django_rq
import pytest

from tenant_slots import signals, transitions
from tenant_slots.models import State, TenantJob
from tenant_slots.workers import TenantPreforkWorker, TenantWorker, supervisor
from tests import jobs
from tests.factories import counters_match, fresh, owner, redis_forgets, running_job, tenant_queue, worker_on_record
from tests.history import History

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_workers")]

Worker = type[TenantPreforkWorker] | type[TenantWorker]

CLASSES = pytest.mark.parametrize("worker_class", [TenantPreforkWorker, TenantWorker])


@pytest.fixture
def admitted(history: History, monkeypatch: pytest.MonkeyPatch) -> list[TenantJob]:
    """Three jobs, of which the first has the last slot. Another slot is freed elsewhere once it is handed out."""
    redis_forgets()
    row = tenant_queue("acme", max_job=2)
    elsewhere = running_job(row, owner(), rq_queue="imports_bulk")
    waiting = jobs.record.enqueue_many([(("acme", f"job-{n}", history.path, 1.5), {}) for n in range(3)])
    hand_out = supervisor.Supervisor._hand_out

    def hand_out_then_free(self: Any, *arguments: Any) -> None:
        hand_out(self, *arguments)
        if fresh(elsewhere).state == State.RUNNING:
            worker_on_record("stock", of_ours=False)  # it has just begun: there is room in the window
            transitions.release(elsewhere, state=State.FINISHED, seconds=1)

    monkeypatch.setattr(supervisor.Supervisor, "_hand_out", hand_out_then_free)
    monkeypatch.setattr(supervisor, "SECONDS_TO_TELL", 1)
    return waiting


@pytest.fixture
def told_in(tmp_path: Path) -> Iterator[Path]:
    """The processes in which a receiver of the project has heard of admitted jobs."""
    path = tmp_path / "told"

    def note(**_: Any) -> None:
        with path.open("a") as file:
            file.write(f"{os.getpid()}\n")

    signals.jobs_admitted.connect(note)
    yield path
    signals.jobs_admitted.disconnect(note)


def run(worker_class: Worker) -> None:
    connection = django_rq.get_connection("imports")
    worker_class([django_rq.get_queue("imports")], connection=connection).work(burst=True, logging_level="ERROR")


@CLASSES
def test_receivers_are_told_of_others_without_a_wait_for_the_job(
    worker_class: Worker, admitted: list[TenantJob], told_in: Path, history: History
) -> None:
    """In its work-horse they would be told after it: a worker that waits for that takes the work-horse to hang."""
    run(worker_class)
    assert [(fresh(job).state, job.attempt) for job in admitted] == [(State.FINISHED, 1)] * 3
    assert sorted(history.started()) == ["job-0", "job-1", "job-2"]
    assert counters_match()
    assert str(os.getpid()) not in told_in.read_text().split()


@CLASSES
def test_and_once_it_has_ended_where_no_process_can_be_had_for_it(
    worker_class: Worker, admitted: list[TenantJob], told_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor.Supervisor, "tell_while_a_job_runs", lambda worker, news: False)
    run(worker_class)
    assert [(fresh(job).state, job.attempt) for job in admitted] == [(State.FINISHED, 1)] * 3
    assert len(told_in.read_text().split()) == 3


@CLASSES
@pytest.mark.usefixtures("told_in")
def test_control_told_to_the_work_horse_it_costs_the_job_its_life(
    worker_class: Worker, admitted: list[TenantJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor.Supervisor, "_tell_news", lambda worker, news: worker._tell(news, None))
    with pytest.raises(SystemExit):
        run(worker_class)
    assert fresh(admitted[0]).state != State.FINISHED
