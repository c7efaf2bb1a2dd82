"""A bulk change that SQL from outside has spoilt: all pages are shown, and nothing of it is taken for done."""

from __future__ import annotations

from contextlib import AbstractContextManager

import pytest
from django.db import connection
from django.db.models import Model
from django.test import Client
from django.urls import reverse

from tenant_slots import many_limits
from tenant_slots.admin import actions
from tenant_slots.admin.bulk import chunks
from tenant_slots.admin.bulk.run import run_bulk_change
from tenant_slots.exceptions import UnreadableBulkChange
from tenant_slots.models import BulkChange, TenantQueue
from tenant_slots.validation import HIGHEST_COUNT
from tests import refusals
from tests.admin.bulk_changes import came_of, carried_out, many_jobs, many_queues, page_of, problems_of, started
from tests.admin.site import JOBS, QUEUES
from tests.factories import fresh, tenant_queue
from tests.repair.test_poisoned_rows import write

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite keeps what it is given, as text"),
]

PART = '{"pks": "%s", "versions": "%s", "of": %s, "one_by_one": false, "counted": 0, "last": 0, "jobs": "%s"}'

TEXTS = ["", "nowhere", "\u202e<script>", "a\r\nb", "%s {0}"]
NO_TEXTS = ["[7]", "7", '{"a": 1}', "[null]"]
NO_VALUES = ["[]", '{"until": {"x": 1}}', '{"until": {"time": 5}}', '{"until": {"time": "x"}}',
             '{"until": {"time": "9999-12-31T23:59:59-05:00"}}']  # fmt: skip
NO_PARTS = ["7", "[7]", "[{}]", f"[{PART % ('x', '', 0, '')}]", f"[{PART % ('7 1x3', '-1', 0, '')}]",
            f"[{PART % ('9' * 19, '', 0, '')}]", f"[{PART % ('7', '', -1, '')}]",
            f"[{PART % ('7', '', 0, '5 x')}]"]  # fmt: skip

OF_CHANGES = {
    "ending": TEXTS[1:], "language": TEXTS, "action": TEXTS,
    "values": NO_VALUES, "problems": NO_TEXTS, "outcomes": NO_TEXTS,
}  # fmt: skip
OF_CHUNKS = {"left": NO_PARTS, "problems": NO_TEXTS, "outcomes": NO_TEXTS}


@pytest.fixture(autouse=True)
def _few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actions, "MOST_IN_REQUEST", 3)
    monkeypatch.setattr(chunks, "QUEUES_PER_CHUNK", 3)


def pages_are_shown(boss: Client, change: BulkChange) -> None:
    assert boss.get(reverse("admin:tenant_slots_tenantqueue_bulk_changes")).status_code == 200
    assert boss.get(page_of(change)).status_code == 200
    assert boss.get(page_of(change, "bulk_live")).status_code == 200


@pytest.mark.parametrize("column", OF_CHANGES)
def test_a_spoilt_bulk_change_spoils_no_page(column: str, boss: Client) -> None:
    change = started(boss, QUEUES, "set_limit", many_queues(4), max_job="5")
    for value in OF_CHANGES[column]:
        write(change, f'"{column}"', value)
        pages_are_shown(boss, change)


@pytest.mark.parametrize("column", OF_CHUNKS)
def test_nor_does_a_spoilt_part_of_one(column: str, boss: Client) -> None:
    change = started(boss, QUEUES, "set_limit", many_queues(4), max_job="5")
    for value in OF_CHUNKS[column]:
        write(change.chunks.earliest("pk"), f'"{column}"', value)
        pages_are_shown(boss, change)


def test_a_part_of_which_nobody_knows_what_is_left_is_not_taken_for_done(boss: Client) -> None:
    rows = many_queues(4)
    change = started(boss, QUEUES, "set_limit", rows, max_job="5")
    first = change.chunks.earliest("pk")
    as_it_was = first.left
    for value in NO_PARTS:
        write(first, '"left"', value)
        with pytest.raises(UnreadableBulkChange, match=f"left of row {first.pk} of tenant_slots_bulkchunk"):
            run_bulk_change(change.pk)
    assert {fresh(row).max_job for row in rows} == {1}
    change.chunks.filter(pk=first.pk).update(left=as_it_was)
    carried_out(change)
    assert {fresh(row).max_job for row in rows} == {5}


def test_nothing_is_changed_by_a_form_that_cannot_be_read(boss: Client) -> None:
    rows = many_queues(4)
    change = started(boss, QUEUES, "pause", rows)
    for value in NO_VALUES:
        write(change, '"values"', value)
        with pytest.raises(UnreadableBulkChange, match="values of row"):
            run_bulk_change(change.pk)
    assert not any(fresh(row).paused for row in rows)


@pytest.mark.parametrize(("action", "outcomes"), [("cancel", {"done": 3, "ended": 2}), ("retry", {"other state": 5})])
def test_jobs_in_no_state_keep_no_other_from_being_changed(action: str, outcomes: dict[str, int], boss: Client) -> None:
    some = many_jobs(tenant_queue(max_job=0), 5)
    for job, state in zip(some, ("", "nowhere"), strict=False):
        write(job, "state", state)
    assert came_of(carried_out(started(boss, JOBS, action, some))) == outcomes


def test_a_version_at_its_end_begins_anew_in_a_bulk_change_too(boss: Client) -> None:
    rows = many_queues(4)
    TenantQueue.objects.filter(pk=rows[1].pk).update(version=HIGHEST_COUNT)
    change = carried_out(started(boss, QUEUES, "set_limit", rows, max_job="5"))
    assert came_of(change) == {"done": 4}
    assert [(fresh(row).max_job, row.version) for row in rows] == [(5, 1), (5, 0), (5, 1), (5, 1)]


def refused(row: Model, condition: str) -> AbstractContextManager[None]:
    """A constraint of the project that a change of this row breaks."""
    return refusals.constrained(f"id <> {row.pk} OR {condition}", type(row))


@pytest.mark.parametrize("at_once", [True, False])
def test_a_row_whose_change_the_database_refuses_has_failed_alone(
    at_once: bool, boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(many_limits, "is_possible", lambda: at_once)
    rows = many_queues(4)
    change = started(boss, QUEUES, "set_limit", rows, max_job="5")
    with refused(rows[1], "max_job < 5"):
        carried_out(change)
    assert came_of(change) == {"done": 3, "failed": 1}
    assert [fresh(row).max_job for row in rows] == [5, 1, 5, 5]
    problems = problems_of(boss, change)
    assert "tenant 001 on imports: " in problems
    assert 'violates check constraint "never"' in problems
    assert "Failing row contains" not in problems


@pytest.mark.parametrize(
    ("at_once", "as_error"), [(True, refusals.RAISED), (True, "undefined_table"), (False, "query_canceled")]
)
def test_so_has_one_that_a_trigger_refuses(
    at_once: bool, as_error: str, boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(many_limits, "is_possible", lambda: at_once)
    rows = many_queues(4)
    change = started(boss, QUEUES, "set_limit", rows, max_job="5")
    with refusals.refused(f"NEW.id = {rows[1].pk} AND NEW.max_job = 5", as_error, TenantQueue):
        carried_out(change)
    assert came_of(change) == {"done": 3, "failed": 1}
    assert [fresh(row).max_job for row in rows] == [5, 1, 5, 5]
    assert "tenant 001 on imports: not this one" in problems_of(boss, change)


def test_a_job_that_the_database_refuses_keeps_no_other_from_being_changed(boss: Client) -> None:
    of_one, of_another = (many_jobs(tenant_queue(tenant, max_job=0), 2) for tenant in ("one", "another"))
    change = started(boss, JOBS, "set_priority", [*of_one, *of_another], priority="7")
    with refused(of_one[0], "priority < 7"):
        carried_out(change)
    assert came_of(change) == {"done": 3, "failed": 1}
    assert [fresh(job).priority for job in (*of_one, *of_another)] == [0, 7, 7, 7]
    problems = problems_of(boss, change)
    assert problems.startswith(f"{of_one[0]}: ")
    assert 'violates check constraint "never"' in problems
