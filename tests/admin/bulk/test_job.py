"""The job that carries out a bulk change."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client, override_settings

from tenant_slots import tenants
from tenant_slots.admin.bulk import ways
from tenant_slots.admin.bulk.chunks import Chunk
from tenant_slots.admin.bulk.commission import Commission
from tenant_slots.admin.bulk.run import run_bulk_change
from tenant_slots.admin.bulk.work import Work
from tenant_slots.db.clock import in_seconds
from tenant_slots.exceptions import BulkChangeOvertaken, UnknownBulkAction
from tenant_slots.models import BulkChange, BulkChunk, KeptChange, TenantJob, TenantQueue
from tests.admin.bulk_changes import (
    carried_out,
    confirm,
    many_queues,
    started,
)
from tests.admin.site import QUEUES
from tests.factories import fresh

pytestmark = pytest.mark.django_db(transaction=True)


def test_it_goes_to_the_queue_of_the_rows_or_of_the_setting(boss: Client) -> None:
    def queue_of(change: BulkChange) -> str:
        return str(TenantJob.objects.get(uuid=change.job).tenant_queue.queue)

    rows = many_queues(5, queue="reports")
    assert queue_of(started(boss, QUEUES, "pause", rows)) == "reports"
    with override_settings(TENANT_SLOTS={"ADMIN_QUEUE": "default"}):
        assert queue_of(started(boss, QUEUES, "pause", rows)) == "default"


@pytest.mark.parametrize(
    "configured", [{"AUTO_CREATE": False}, {"REQUIRE_TENANT": True}, {"DEFAULT_MAX_JOB": "tests.jobs.no_such_thing"}]
)
def test_its_tenant_is_made_whatever_the_settings_say_of_tenants(boss: Client, configured: dict[str, Any]) -> None:
    rows = many_queues(5)
    with override_settings(TENANT_SLOTS=configured):
        carried_out(started(boss, QUEUES, "pause", rows))
    assert TenantQueue.objects.get(tenant=tenants.ADMIN_TENANT).max_job == tenants.JOBS_OF_ADMIN


def test_a_second_run_of_the_job_does_nothing_twice(boss: Client) -> None:
    rows = many_queues(5)
    change = carried_out(started(boss, QUEUES, "set_limit", rows, max_job="5"))
    assert run_bulk_change(change.pk) == {}
    assert {fresh(row).version for row in rows} == {1}
    assert LogEntry.objects.count() == 5


def test_old_reports_are_forgotten_when_another_begins(boss: Client) -> None:
    old = carried_out(started(boss, QUEUES, "pause", many_queues(5)))
    BulkChange.objects.update(ended_at=in_seconds(-8 * 24 * 3600))
    new = started(boss, QUEUES, "resume", list(TenantQueue.objects.filter(queue="imports")))
    assert list(BulkChange.objects.values_list("pk", flat=True)) == [new.pk] != [old.pk]


def test_confirm_answers_with_the_page_of_the_change(boss: Client) -> None:
    response = confirm(boss, QUEUES, "pause", many_queues(5))
    assert response.status_code == 302
    assert boss.get(response["Location"]).status_code == 200


def test_a_run_that_was_overtaken_changes_nothing_more(boss: Client) -> None:
    rows = many_queues(4)
    change = started(boss, QUEUES, "set_limit", rows, max_job="5")
    commission = Commission.of(change)
    assert commission is not None
    stale, other = (Work(commission, Chunk.of(BulkChunk.objects.get())) for _ in range(2))
    way = ways.way_of(commission.action)
    assert set(way(other)) == {None}
    TenantQueue.objects.update(version=0)  # as if only the chunk could tell that somebody else was here

    with pytest.raises(BulkChangeOvertaken):
        list(way(stale))

    assert {fresh(row).version for row in rows} == {0}
    assert KeptChange.objects.count() == 4


def test_a_worker_without_the_action_says_what_is_missing(boss: Client) -> None:
    change = started(boss, QUEUES, "pause", many_queues(5))
    BulkChange.objects.update(site="elsewhere")
    with pytest.raises(UnknownBulkAction, match="elsewhere"):
        run_bulk_change(change.pk)
