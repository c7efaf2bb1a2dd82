"""Projects that read from a replica, or whose router knows nothing of the database of the slots: whatever it says, we
read and write where the slots are.

The other database of these tests is empty and Django lets no test connect to it: whoever asks it for anything fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import django_rq
import pytest
from django.contrib.admin.models import LogEntry
from django.core.management import call_command
from django.db import connections
from django.db.models import QuerySet
from django.db.models.signals import post_save
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from tenant_slots import hold_slot
from tenant_slots.admin import actions
from tenant_slots.conf import app_settings
from tenant_slots.db.clock import in_seconds
from tenant_slots.db.transactions import is_open
from tenant_slots.exceptions import TenantQueueLocked
from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.repair import doctor
from tests import jobs
from tests.admin.site import JOBS, QUEUES, Form, change_page, confirmed, loaded
from tests.factories import age, another_process, dead_process, running_job, tenant_queue, waiting_job, work
from tests.repair.sweeps import sweep_now
from tests.test_receivers import heard

pytestmark = pytest.mark.django_db(transaction=True)

REPLICA = "replica"


class ReplicaRouter:
    """The one of Django's documentation: https://docs.djangoproject.com/en/stable/topics/db/multi-db/"""

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        return REPLICA if model._meta.app_label in ("tenant_slots", "reports_app") else None

    def db_for_write(self, model: Any, **hints: Any) -> str:
        return "default"

    def allow_relation(self, *rows: Any, **hints: Any) -> bool:
        return True


class PrimaryRouter(ReplicaRouter):
    """The same where the slots have a database of their own: it names the project's primary for all rows."""

    def db_for_write(self, model: Any, **hints: Any) -> str:
        return REPLICA if model._meta.app_label == "tenant_slots" else "default"

    def allow_relation(self, *rows: Any, **hints: Any) -> bool | None:  # type: ignore[override]
        return True if all(row._state.db == REPLICA for row in rows) else None


@pytest.fixture(autouse=True, params=[ReplicaRouter, PrimaryRouter])
def _replica(request: pytest.FixtureRequest, transactional_db: None, settings: Any, tmp_path: Path) -> Iterator[None]:
    empty = {"ENGINE": "django.db.backends.sqlite3", "NAME": tmp_path / REPLICA}  # in memory, Django would not close it
    databases = connections.configure_settings({"default": {}, REPLICA: empty})
    connections.databases[REPLICA] = databases[REPLICA]
    settings.DATABASE_ROUTERS = [f"{__name__}.{request.param.__name__}"]
    yield
    connections[REPLICA].close()
    del connections[REPLICA], connections.databases[REPLICA]


def stored(row: Any) -> Any:
    return type(row).objects.using("default").get(pk=row.pk)


def test_control_whoever_follows_the_router_fails() -> None:
    with pytest.raises(AssertionError, match=REPLICA):
        QuerySet(TenantJob).first()


def test_enqueueing() -> None:
    one = jobs.add.enqueue(1, 2, tenant="acme")
    two, three = jobs.add.using(priority=3, run_after=timezone.now() + timedelta(hours=1)).enqueue_many(
        [((1, 2), {"tenant": "acme"}), ((3, 4), {"tenant": "other"})]
    )
    assert [stored(job).state for job in (one, two, three)] == [State.QUEUED, State.SCHEDULED, State.SCHEDULED]
    assert stored(one).tenant_queue.tenant == "acme"


def test_one_that_runs_after_others() -> None:
    first = jobs.add.enqueue(1, 2, tenant="acme")
    second = jobs.add.using(after=[first]).enqueue(1, 2, tenant="acme")
    work()
    assert stored(second).state == State.FINISHED


def test_a_plain_rq_job() -> None:
    django_rq.get_queue("reports").enqueue(jobs.add, 1, 2, tenant="acme")
    work()
    assert TenantJob.objects.get().state == State.FINISHED


def test_duplicates_throttles_and_busy_tenants() -> None:
    first, second = jobs.import_once.enqueue("acme", "feed"), jobs.import_once.enqueue("acme", "feed")
    assert first.pk == second.pk
    age(first, enqueued_at=3600 * 24 * 30)
    assert jobs.import_once.enqueue("acme", "feed").pk != first.pk


def test_a_job_is_canceled_and_retried_and_moved() -> None:
    row = tenant_queue(max_job=0)
    job, other = waiting_job(row), waiting_job(row)
    assert other.set_priority(5)
    assert stored(other).priority == 5
    assert job.cancel()
    assert stored(job).state == State.CANCELED
    job.retry()
    assert (job.state, stored(job).state) == (State.WAITING, State.WAITING)


def test_a_queued_and_a_running_job_are_canceled() -> None:
    row = tenant_queue(max_job=2)
    running, queued = running_job(row, another_process()), waiting_job(row)
    row.admit_waiting()
    assert queued.cancel()
    assert running.cancel()
    assert stored(queued).state == State.CANCELED
    assert stored(running).cancel_requested_at is not None


def test_every_change_of_a_tenant_queue() -> None:
    row = tenant_queue()
    soon = timezone.now() + timedelta(hours=1)
    changes: list[tuple[Callable[..., object], tuple[Any, ...], dict[str, Any]]] = [
        (TenantQueue.set_limit, (3,), {}),
        (TenantQueue.set_override, (5, soon), {}),
        (TenantQueue.end_override, (), {}),
        (TenantQueue.reset_to_default, (), {}),
        (TenantQueue.set_max_job_per_key, (1,), {}),
        (TenantQueue.set_max_waiting, (7,), {}),
        (TenantQueue.pause, (), {"until": soon}),
        (TenantQueue.resume, (), {}),
    ]
    for number, (change, values, options) in enumerate(changes, start=1):
        change(row, *values, **options, version=row.version)
        assert (row.version, stored(row).version) == (number, number), change.__name__
    row.max_job = 4
    row.save()
    assert (stored(row).max_job, stored(row).version, row.version) == (4, number + 1, number + 1)


def test_relations_and_fields_that_were_not_loaded() -> None:
    job = waiting_job(tenant_queue())
    found = TenantJob.objects.only("task").get()
    assert (found.state, found.tenant_queue.tenant, found.tenant_queue.jobs.get()) == (State.WAITING, "acme", job)
    found.delete()
    row = TenantQueue.objects.get()
    row.delete()
    assert not TenantQueue.objects.exists()


def test_a_job_runs() -> None:
    job = jobs.add.enqueue(1, 2, tenant="acme")
    work()
    assert (stored(job).state, stored(job).result) == (State.FINISHED, 3)


def test_a_slot_is_held_and_progress_reported() -> None:
    with hold_slot("acme", "imports", timeout=5) as reservation:
        assert stored(reservation.job).state == State.RUNNING
    assert stored(reservation.job).state == State.FINISHED


def test_the_sweep_and_the_doctor() -> None:
    row = tenant_queue(max_job=2, max_job_per_key=1)
    running_job(row, dead_process())
    scheduled = waiting_job(row, state=State.SCHEDULED)
    old = waiting_job(row, state=State.FINISHED)
    age(scheduled, run_after=100)
    age(old, ended_at=10**8)
    row.set_override(5, timezone.now() + timedelta(hours=1))
    paused = tenant_queue("paused", paused=True)
    TenantQueue.objects.update(override_until=in_seconds(-1))
    TenantQueue.objects.filter(pk=paused.pk).update(current_job=1, resume_at=in_seconds(-1))
    found = {finding.kind for finding in doctor.findings()}
    assert {"dead owner", "overdue", "counter"} <= found
    report = sweep_now()
    assert (report.reclaimed, report.promoted, report.overrides_ended, report.resumed) == (1, 1, 2, 1)
    assert (report.repaired, report.pruned) == (1, 1)


def test_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    tenant_queue()
    call_command("slots_limit", "acme", "imports", "4")
    assert TenantQueue.objects.get().max_job == 4
    for name in ("slots_status", "slots_doctor"):
        call_command(name)
    call_command("slots_sweep")
    assert "acme" in capsys.readouterr().out


def test_the_admin(boss: Client) -> None:
    row = tenant_queue()
    job, other = running_job(row, another_process()), waiting_job(row)
    for page in ("tenantqueue", "tenantjob"):
        assert boss.get(reverse(f"admin:tenant_slots_{page}_changelist")).status_code == 200
    assert boss.get(reverse("admin:tenant_slots_tenantqueue_change", args=[row.pk])).status_code == 200
    assert boss.get(reverse("admin:tenant_slots_tenantjob_change", args=[job.pk])).status_code == 200
    confirmed(boss, JOBS, "cancel", other)
    assert stored(other).state == State.CANCELED


@pytest.fixture
def _transactions_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Django's admin begins one where the router says, around the form; it may have no tables of ours."""
    connections[REPLICA].connect()
    monkeypatch.setattr(connections[REPLICA], "ensure_connection", lambda: None)


@pytest.mark.usefixtures("_transactions_elsewhere")
def test_all_of_a_form_is_saved_or_nothing(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    row = tenant_queue()

    def refuse(*_: Any, **__: Any) -> None:
        raise TenantQueueLocked(tenant_queue=row, seconds=5)

    monkeypatch.setattr(TenantQueue, "set_share", refuse)
    response = boss.post(change_page(row), {**loaded(boss, row), "max_job": 3, "share": 5})
    assert "locked" in response.content.decode()
    assert stored(row).max_job == 1


@pytest.mark.usefixtures("_transactions_elsewhere")
def test_the_form_holds_no_tenant_queue_while_its_entry_is_written_elsewhere(boss: Client, settings: Any) -> None:
    row = tenant_queue()
    holding: list[bool] = []

    def look(sender: Any, **_: Any) -> None:
        if sender is LogEntry:
            holding.append(is_open(app_settings.DATABASE))

    with heard(post_save, look):
        boss.post(change_page(row), {**loaded(boss, row), "max_job": 3})
    assert stored(row).max_job == 3
    (router,) = settings.DATABASE_ROUTERS
    assert holding == [router.endswith("ReplicaRouter")], "that of the other one has Django's transaction elsewhere"


@pytest.mark.usefixtures("_transactions_elsewhere")
@pytest.mark.parametrize("most", [100, 0], ids=["at once", "in the background"])
def test_tenant_queues_are_added_changed_and_deleted_in_the_admin(
    boss: Client, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "MOST_IN_REQUEST", most)
    page = reverse("admin:tenant_slots_tenantqueue_add")
    for tenant in ("acme", "acme", "other"):
        sent = {**Form(boss.get(page).content.decode()).values, "tenant": tenant, "queue": "imports", "max_job": 2}
        boss.post(page, sent, follow=True)
    acme, other = TenantQueue.objects.order_by("tenant")
    boss.post(change_page(acme), {**loaded(boss, acme), "max_job": 3}, follow=True)
    assert stored(acme).max_job == 3
    confirmed(boss, QUEUES, "pause", acme, other)
    work()
    assert stored(other).paused
    confirmed(boss, QUEUES, "delete_selected", acme, other)
    work()
    assert not TenantQueue.objects.filter(tenant__in=["acme", "other"]).exists()
