"""slots_doctor finds each kind of damage, says where, and --fix repairs it."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import StringIO

import django_rq
import pytest
from django.core.management import call_command
from django.test import override_settings

from tenant_slots.models import Kind, State, TenantJob, TenantQueue
from tests import jobs
from tests.factories import (
    age,
    another_process,
    counters_match,
    dead_process,
    fresh,
    owner,
    running_job,
    tenant_queue,
    waiting_job,
)

pytestmark = pytest.mark.django_db(transaction=True)


def doctor(*arguments: str) -> tuple[int, str]:
    """Exit code and output."""
    output = StringIO()
    try:
        call_command("slots_doctor", *arguments, stdout=output)
    except SystemExit as stop:
        return int(stop.code or 0), output.getvalue()
    return 0, output.getvalue()


def wrong_counter() -> None:
    row = tenant_queue()
    running_job(row, another_process())
    TenantQueue.objects.update(current_job=7)


def dead_owner() -> None:
    running_job(tenant_queue(), dead_process())


def dead_reservation() -> None:
    TenantJob.objects.create(tenant_queue=tenant_queue(max_job=0), kind=Kind.RESERVATION, **dead_process().as_fields())


def lost_in_redis() -> None:
    job = jobs.add.using(queue="imports").enqueue(1, 2, tenant="acme")
    django_rq.get_connection("imports").flushall()
    age(job, admitted_at=6)


def stranded() -> None:
    waiting_job(tenant_queue())


def overdue() -> None:
    age(waiting_job(tenant_queue(), state=State.SCHEDULED), run_after=16)


def test_a_healthy_system_gets_exit_code_0() -> None:
    running_job(tenant_queue(), another_process())
    assert doctor() == (0, "all is well\n")


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        (wrong_counter, "counter"),
        (dead_owner, "dead owner"),
        (dead_reservation, "dead reservation"),
        (lost_in_redis, "lost in Redis"),
        (stranded, "stranded"),
        (overdue, "overdue"),
    ],
)
def test_damage_is_found_named_and_repaired(damage: Callable[[], None], kind: str) -> None:
    damage()
    code, output = doctor("--json")
    assert code == 1
    assert (kind, "acme", "imports") in {(f["kind"], f["tenant"], f["queue"]) for f in json.loads(output)["findings"]}
    code, output = doctor("--fix")
    assert code == 0, output
    assert "(repaired)" in output
    assert doctor() == (0, "all is well\n")
    assert counters_match()


def test_a_stale_owner_is_found_and_left_to_a_sweeper_that_has_watched() -> None:
    job = running_job(tenant_queue(), owner("far", host="elsewhere"))
    age(job, beat_at=21)
    code, output = doctor("--fix")
    assert code == 1
    assert "stale owner: 'acme' on 'imports'" in output
    assert fresh(job).state == State.RUNNING


def test_a_redis_out_of_reach_is_a_finding() -> None:
    waiting_job(tenant_queue(), state=State.QUEUED, admitted_at="2020-01-01T00:00Z")
    TenantQueue.objects.update(current_job=1)
    with override_settings(RQ_QUEUES={"imports": {"URL": "redis://127.0.0.1:1/0"}}):
        code, output = doctor("--fix")
    assert code == 1
    assert "Redis cannot be asked" in output
