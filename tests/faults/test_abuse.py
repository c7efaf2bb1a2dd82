"""Hostile input, and where each kind of it is tested.

=======================================  ==============================================================================
abuse                                    test
=======================================  ==============================================================================
payload naming ``os.system``             here, and ``test_bad_input.test_a_forged_row_cannot_name_another_callable``
forged attempt                           ``test_bad_input.test_a_forged_attempt_runs_nothing``
the same id five times                   ``test_redis.test_i1_i4_the_same_rq_id_pushed_five_times_runs_once``
10,000 unknown tenants                   here
10 MiB arguments                         here, and ``test_bad_input.test_arguments_over_the_limit_are_refused_…``
HTML, CR/LF, SQL, NUL, 10,000 letters    ``test_bad_input.test_hostile_tenants_are_only_text``, ``…_invalid_tenant_…``,
                                         ``test_pages.test_a_tenants_name_is_shown_as_text_on_every_page``,
                                         ``test_enqueue.test_a_line_break_in_a_tenant_cannot_forge_a_log_line``,
                                         ``test_commands.test_a_hostile_name_can_neither_steer_the_terminal_…``
secrets in arguments                     here, ``test_enqueue.test_the_rq_job_names_task_and_tenant_but_no_arguments``,
                                         ``test_detail.test_arguments_need_a_permission_of_their_own``
missing CSRF token                       here
GET on an action                         ``test_pages.test_a_get_runs_no_action``
staff without the permission             ``test_pages.test_staff_without_permission_sees_nothing`` and those after it
=======================================  ==============================================================================
"""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import django_rq
import pytest
from django.contrib.auth.models import User
from django.db import transaction
from django.test import Client
from django.urls import reverse

from tenant_slots import exceptions
from tenant_slots.enqueueing import bulk
from tenant_slots.models import State, TenantJob, TenantQueue
from tests import jobs as plain_jobs
from tests.factories import counters_match, fresh, tenant_queue
from tests.faults import jobs
from tests.faults.conftest import FaultWorkers
from tests.faults.observer import Observer
from tests.processes import ROOT, environment, wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def test_i3_i9_a_payload_in_redis_that_names_another_function_gets_no_slot_and_no_job(
    workers: FaultWorkers, observer: Observer
) -> None:
    """Whoever writes to Redis makes RQ run what he likes; he cannot make it pass for a tenant's job."""
    workers.start()
    job = jobs.quick.enqueue("acme", "honest", observer.path)
    queue = django_rq.get_queue("imports")
    forged = queue.enqueue_job(queue.create_job("os.getpid", job_id=f"{fresh(job).uuid}-7"))
    observer.wait_for_all()
    wait_until(lambda: forged.get_status(refresh=True) in ("finished", "failed"))
    assert (fresh(job).state, job.attempt) == (State.FINISHED, 1)
    assert counters_match()


def test_i8_ten_thousand_unknown_tenants_hold_nobody_up(workers: FaultWorkers, observer: Observer) -> None:
    """All of them wait for a queue that nobody works on, beside free slots."""
    observer.unserved.add("imports_bulk")
    rows = [TenantQueue(tenant=f"unknown{n}", queue="imports_bulk") for n in range(10_000)]
    TenantQueue.objects.bulk_create(rows)
    with transaction.atomic():
        bulk.insert([TenantJob(tenant_queue=row, task="tests.jobs.add", args=[1, 2]) for row in rows])
    workers.start(2)
    for n in range(20):
        jobs.quick.enqueue("acme", f"known{n}", observer.path)
    known = TenantJob.objects.filter(tenant_queue__tenant="acme")
    wait_until(lambda: known.filter(state=State.FINISHED).count() == 20, 10, "the known tenant waits for the unknown")


def test_ten_mebibytes_of_arguments_are_refused_and_nothing_is_stored() -> None:
    with pytest.raises(exceptions.ArgumentsTooLarge):
        plain_jobs.fail.enqueue("acme", "x" * 10 * 2**20)
    assert not TenantJob.objects.exists()


def test_i9_secrets_in_arguments_reach_no_log(
    workers: FaultWorkers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither ours nor the worker's, at its most talkative, also when the job fails."""
    secret = "correct-horse-battery-staple"
    path = tmp_path / "log"
    with caplog.at_level(logging.DEBUG), path.open("w") as log:
        jobs.quick.enqueue("acme", secret, str(tmp_path / "history"))
        jobs.die.enqueue("other", secret, str(tmp_path / "history"), "sys.exit")
        command = ["-W", "ignore", "manage.py", "rqworker", "imports", "--burst", "-v", "3"]
        values = {**environment(), **workers.variables}
        subprocess.run([sys.executable, *command], cwd=ROOT, env=values, stdout=log, stderr=log, timeout=60, check=True)
    assert "tests.faults.jobs.quick" in path.read_text()
    assert secret not in path.read_text()
    assert secret not in caplog.text


def test_i9_an_action_without_the_token_of_the_form_is_refused() -> None:
    row = tenant_queue("acme", max_job=1)
    client = Client(enforce_csrf_checks=True)
    client.force_login(User.objects.create_superuser("root"))
    address = reverse("admin:tenant_slots_tenantqueue_changelist")
    answer = client.post(address, {"action": "pause", "_selected_action": [row.pk]})
    assert answer.status_code == 403
    assert not fresh(row).paused
