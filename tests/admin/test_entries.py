"""A change and its entry in the log of the admin: both, or none and whoever asked is told so."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.test import Client

from tenant_slots.admin import TenantJobAdmin, TenantQueueAdmin, actions
from tenant_slots.db.transactions import waiting_at_most
from tenant_slots.models import BulkChange, Ending, State, TenantJob, TenantQueue
from tests import refusals
from tests.admin.bulk_changes import many_queues, page_of, started
from tests.admin.site import JOBS, QUEUES, asked, confirmed, messages_of
from tests.factories import another_process, dead_process, fresh, in_thread, running_job, tenant_queue, waiting_job
from tests.races.test_callers_transactions import kept_open

pytestmark = pytest.mark.django_db(transaction=True)

on_postgres = pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has no such triggers")

JSON = {"Accept": "application/json"}

SAID = "The change was made, but its entry in the log of the admin could not be written: {}"

OF_JOBS = [
    ("cancel", lambda row: waiting_job(row), {}),
    ("cancel", lambda row: running_job(row, another_process()), {}),
    ("retry", lambda row: waiting_job(row, state=State.FAILED), {}),
    ("set_priority", lambda row: waiting_job(row), {"priority": "7"}),
    ("stop", lambda row: running_job(row, another_process()), {}),
    ("release", lambda row: running_job(row, dead_process()), {"force": "on", "reason": "it hangs"}),
]

OF_QUEUES: list[tuple[str, dict[str, str]]] = [
    ("pause", {}),
    ("set_limit", {"max_job": "7"}),
    ("set_share", {"share": "7"}),
    ("cancel_waiting", {"typed": "1"}),
    ("retry_failed", {}),
]


COMMANDS = {"stop": "stop", "end": "stop", "go on": "go_on"}
"""The buttons on the page of a bulk change."""

COMMANDS_OF_LOST = ("end", "go on")


class EntriesElsewhere:
    """A router of a project whose log of the admin is in a database of its own, which is away."""

    def db_for_write(self, model: Any, **hints: Any) -> str | None:
        return "elsewhere" if model is LogEntry else None


def no_entry() -> Any:
    """Entries are refused meanwhile."""
    return refusals.refused("true", model=LogEntry, events="INSERT")


def stored() -> list[Any]:
    return [list(model._default_manager.order_by("pk").values()) for model in (TenantQueue, TenantJob)]


def with_jobs() -> TenantQueue:
    """A tenant queue with a job for each of the actions on it."""
    row = tenant_queue(max_job=0)
    waiting_job(row)
    waiting_job(row, state=State.FAILED)
    return row


@on_postgres
@pytest.mark.parametrize(("page", "data"), [("limit", {"max_job": "5", "share": "3"}), ("reset", {})])
def test_a_limit_whose_entry_is_refused_stays_as_it_was(page: str, data: dict[str, str], boss: Client) -> None:
    row = tenant_queue(max_job=9)
    before = stored()
    with no_entry():
        responses = [
            boss.post(f"{QUEUES}{row.pk}/{page}/", {"version": "0", **data}, headers=headers) for headers in ({}, JSON)
        ]
    assert [response.status_code for response in responses] == [409, 409]
    assert ["not this one" in response.content.decode() for response in responses] == [True, True]
    assert stored() == before
    assert not fresh(row).kept_changes.exists()


@on_postgres
@pytest.mark.parametrize(("action", "data"), OF_QUEUES)
def test_an_action_on_a_tenant_queue_whose_entry_is_refused_changes_nothing(
    action: str, data: dict[str, str], boss: Client
) -> None:
    row = with_jobs()
    _, sent = asked(boss, QUEUES, action, row)
    before = stored()
    with no_entry():
        response = boss.post(QUEUES, {**sent, **data}, follow=True)
    assert messages_of(response) == ["1 could not be changed. acme on imports: not this one"]
    assert stored() == before
    assert not fresh(row).kept_changes.exists()


@on_postgres
@pytest.mark.parametrize(
    ("action", "job", "data"), OF_JOBS, ids=["cancel", "cancel a run", "retry", "set_priority", "stop", "release"]
)
def test_an_action_on_a_job_whose_entry_is_refused_changes_nothing(
    action: str, job: Callable[[TenantQueue], TenantJob], data: dict[str, str], boss: Client
) -> None:
    one = job(tenant_queue())
    _, sent = asked(boss, JOBS, action, one)
    before = stored()
    with no_entry():
        response = boss.post(JOBS, {**sent, **data}, follow=True)
    assert messages_of(response) == [f"1 could not be changed. {one}: not this one"]
    assert stored() == before


def commanded(client: Client, command: str, monkeypatch: pytest.MonkeyPatch) -> BulkChange:
    """A bulk change that may be told so."""
    monkeypatch.setattr(actions, "MOST_IN_REQUEST", 3)
    change = started(client, QUEUES, "pause", many_queues(5))
    if command in COMMANDS_OF_LOST:
        TenantJob.objects.get(uuid=change.job).cancel()
    return change


def state_of(change: BulkChange) -> list[Any]:
    changes = BulkChange.objects.filter(pk=change.pk).values()
    return [*changes, *change.chunks.values(), TenantJob.objects.count()]


@on_postgres
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_to_a_bulk_change_whose_entry_is_refused_changes_nothing(
    command: str, boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = commanded(boss, command, monkeypatch)
    before = state_of(change)
    with no_entry():
        response = boss.post(page_of(change), {COMMANDS[command]: "yes"}, follow=True)
    assert messages_of(response) == ["not this one"]
    assert state_of(change) == before


@on_postgres
def test_only_the_row_whose_entry_is_refused_is_left(boss: Client) -> None:
    rows = many_queues(3)
    _, sent = asked(boss, QUEUES, "set_limit", *rows)
    with refusals.refused(f"NEW.object_id = '{rows[1].pk}'", model=LogEntry, events="INSERT"):
        response = boss.post(QUEUES, {**sent, "max_job": "7"}, follow=True)
    assert [fresh(row).max_job for row in rows] == [7, 1, 7]
    assert messages_of(response) == [
        "The limits of 2 tenant queues were set.",
        "1 could not be changed. tenant 001 on imports: not this one",
    ]
    assert LogEntry.objects.count() == 2


@on_postgres
def test_an_entry_that_waits_for_somebody_keeps_the_row_no_longer_than_our_patience(boss: Client) -> None:
    """Somebody deletes the user, to whom the entry refers."""
    row = tenant_queue(max_job=1)
    _, sent = asked(boss, QUEUES, "set_limit", row)
    users = User.objects.select_for_update()
    with kept_open(lambda: list(users)), waiting_at_most(0.2):
        response = boss.post(QUEUES, {**sent, "max_job": "7"}, follow=True)
    assert "1 could not be changed." in messages_of(response)[0]
    assert fresh(row).max_job == 1


def test_control_a_change_has_its_entry(boss: Client) -> None:
    row = tenant_queue(max_job=1)
    boss.post(f"{QUEUES}{row.pk}/limit/", {"max_job": "5", "version": "0"})
    assert LogEntry.objects.get().get_change_message() == "Changed limit: 1 → 5."


# --- where the log of the admin is in another database ----------------------------------------------------------------


@pytest.fixture
def _entries_elsewhere(settings: Any) -> None:
    settings.DATABASE_ROUTERS = [f"{__name__}.EntriesElsewhere"]


def complaints(caplog: pytest.LogCaptureFixture) -> list[Any]:
    return [record for record in caplog.records if record.levelno == logging.ERROR and record.name == "tenant_slots"]


@pytest.mark.usefixtures("_entries_elsewhere")
@pytest.mark.parametrize("headers", [{}, JSON])
def test_a_limit_stands_without_the_entry_that_another_database_refuses_and_it_is_said(
    headers: dict[str, str], boss: Client, caplog: pytest.LogCaptureFixture
) -> None:
    row = tenant_queue(max_job=1)
    response = boss.post(f"{QUEUES}{row.pk}/limit/", {"max_job": "5", "version": "0"}, headers=headers)
    assert response.status_code == (200 if headers else 302)
    assert fresh(row).max_job == 5
    assert SAID.format(row) in messages_of(boss.get(QUEUES))
    (record,) = complaints(caplog)
    assert (record.tenant, record.queue) == ("acme", "imports")
    assert record.exc_info


@pytest.mark.usefixtures("_entries_elsewhere")
def test_so_do_actions(boss: Client, caplog: pytest.LogCaptureFixture) -> None:
    row, job = tenant_queue(max_job=1), waiting_job(tenant_queue("other", max_job=0))
    of_queue = confirmed(boss, QUEUES, "set_limit", row, max_job="7")
    assert messages_of(of_queue) == [SAID.format(row), "The limit of 1 tenant queue was set."]
    of_job = confirmed(boss, JOBS, "set_priority", job, priority="7")
    assert messages_of(of_job) == [SAID.format(job), "The priority of 1 job was changed."]
    assert (fresh(row).max_job, fresh(job).priority) == (7, 7)
    assert len(complaints(caplog)) == 2


@pytest.mark.usefixtures("_entries_elsewhere")
@pytest.mark.parametrize("command", COMMANDS)
def test_so_do_commands_to_a_bulk_change(
    command: str, boss: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    change = commanded(boss, command, monkeypatch)
    first_job = change.job
    response = boss.post(page_of(change), {COMMANDS[command]: "yes"}, follow=True)
    assert messages_of(response) == [SAID.format(change)]
    assert (fresh(change).cancel_requested_at is not None) == (command != "go on")
    assert (change.ending == Ending.STOPPED) == (command == "end")
    assert (change.job != first_job) == (command == "go on")
    assert len(complaints(caplog)) == 1


@on_postgres
@pytest.mark.parametrize("of_queues", [True, False], ids=["tenant queues", "jobs"])
def test_nobodys_row_is_held_while_the_project_makes_the_entry(
    of_queues: bool, boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may do so over a network."""
    row = tenant_queue()
    job = waiting_job(row, state=State.FAILED)
    free: list[int] = []

    def look() -> int:
        with transaction.atomic():
            return len(TenantQueue.objects.select_for_update(skip_locked=True))

    model_admin = TenantQueueAdmin if of_queues else TenantJobAdmin
    monkeypatch.setattr(model_admin, "log_change", lambda *args: free.append(in_thread(look)), raising=False)
    if of_queues:
        confirmed(boss, QUEUES, "set_limit", row, max_job="7")
    else:
        confirmed(boss, JOBS, "retry", job)
    assert free == [1]
