"""Every job runs in its tenant's schema, whatever way it came and whoever runs it, and none in the public one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import django_rq
import psycopg
import pytest
from django.conf import settings
from django.core.checks import run_checks
from django.db import connection
from django.test import override_settings
from django_tenants.utils import schema_context
from rq.job import Job

from tenant_slots import capture_context, tenants
from tenant_slots.models import State, TenantJob
from tests.schemas.customers.models import Customer
from tests.schemas.feeds import models
from tests.schemas.feeds.models import Entry
from tests.schemas.site.conftest import SCHEMAS

ROOT = Path(__file__).resolve().parent.parent.parent.parent

OURS = ("TenantWorker", "TenantPreforkWorker", "TenantSimpleWorker")
WORKERS = [*(f"tenant_slots.workers.{name}" for name in OURS), "rq.Worker", "rq.SimpleWorker", "rq.worker.SpawnWorker"]


def work(worker_class: str = WORKERS[1], **variables: str) -> None:
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.schemas.settings", **variables}
    environment["TEST_WORKER_CLASS"] = worker_class
    command = [sys.executable, "-W", "ignore", "manage.py", "rqworker", "imports", "--burst"]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stderr


def entries() -> dict[str, list[str]]:
    """What is in the table of each schema."""
    found = {}
    for name in ("public", *SCHEMAS):
        with schema_context(name):
            found[name] = sorted(Entry.objects.values_list("text", flat=True))
    return found


def enqueue_in(schema: str) -> None:
    """Every way there is, from code that serves one tenant."""
    with schema_context(schema):
        entry = Entry.objects.create(text=f"{schema} method")
        models.note.enqueue(schema, f"{schema} function")
        models.note.enqueue_many([((schema, f"{schema} one of many"), {})])
        models.note.enqueue(f"{schema}-7", f"{schema} of another name")
        models.note_later.enqueue(schema, f"{schema} coroutine")
        models.note_here.enqueue(f"{schema} here")
        entry.amend.enqueue()
        queue = django_rq.get_queue("imports")
        queue.enqueue(models.note, schema, f"{schema} plain")
        queue.enqueue(models.note_later, schema, f"{schema} plain coroutine")
        meta = {"tenant_slots_context": capture_context()}
        queue.enqueue(models.note, f"{schema}-7", f"{schema} plain with meta", meta=meta)
        queue.enqueue(models.note, None, f"{schema} plain without tenant", meta=meta)
    # From code that serves nobody, such as a command: the schema is the one of the tenant's name.
    models.note.enqueue(schema, f"{schema} from outside")


def all_of(schema: str) -> list[str]:
    ends = (
        "coroutine",
        "from outside",
        "function",
        "here",
        "method amended",
        "of another name",
        "one of many",
    )
    plain = ("plain", "plain coroutine", "plain with meta", "plain without tenant")
    return sorted(f"{schema} {end}" for end in (*ends, *plain))


@pytest.mark.parametrize("worker_class", WORKERS)
def test_every_job_runs_in_its_schema_and_none_in_public(worker_class: str) -> None:
    for schema in SCHEMAS:
        enqueue_in(schema)
    work(worker_class)
    assert entries() == {"public": [], **{schema: all_of(schema) for schema in SCHEMAS}}
    assert {job.state for job in TenantJob.objects.all()} == {State.FINISHED}


def test_the_control_without_the_context_they_run_in_public() -> None:
    """The control: it is the context that keeps them out of there."""
    for schema in SCHEMAS:
        enqueue_in(schema)
    work(TEST_TENANT_SLOTS='{"REQUIRE_TENANT": false}')
    assert entries()["public"] != []
    assert all("function" not in " ".join(entries()[schema]) for schema in SCHEMAS)


@pytest.mark.parametrize("worker_class", WORKERS)
def test_a_job_without_a_schema_fails_and_does_not_run(worker_class: str) -> None:
    queue = django_rq.get_queue("imports")
    models.note.enqueue("nobody", "enqueued")
    plain = [queue.enqueue(models.note, tenant, "plain") for tenant in ("nobody", None)]
    plain.append(queue.enqueue(models.note_here, "its tenant is asked for in the worker, where it is public"))
    work(worker_class)
    assert entries() == {"public": [], "acme": [], "umbrella": []}
    assert {job.state for job in TenantJob.objects.all()} == {State.FAILED}
    assert all("NoSchema" in job.error for job in TenantJob.objects.all())
    assert all(Job.fetch(job.id, connection=queue.connection).is_failed for job in plain)


def test_a_schema_of_no_tenant_fails_its_jobs() -> None:
    with schema_context("gone"):
        job = models.note.enqueue("gone", "too late")
    work()
    job.refresh_from_db()
    assert job.state == State.FAILED
    assert "no tenant has the schema 'gone'" in job.error


@pytest.fixture
def without_schema() -> Iterator[str]:
    """A tenant whose schema somebody has dropped, or not made yet."""
    customer = Customer(schema_name="unmade", name="unmade")
    customer.auto_create_schema = False
    customer.save()
    yield customer.schema_name
    customer.delete()


@pytest.mark.parametrize("worker_class", WORKERS[:3])
def test_a_tenant_without_its_schema_has_its_jobs_fail_and_not_run_in_public(
    worker_class: str, without_schema: str
) -> None:
    job = models.note.enqueue(without_schema, "too early")
    work(worker_class)
    job.refresh_from_db()
    assert (job.state, entries()["public"]) == (State.FAILED, [])
    assert "the schema 'unmade' of its tenant is not in the database" in job.error


def test_what_the_admin_of_public_enqueues_runs_there_and_that_of_a_tenant_in_its_schema(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tenants, "OUR_PATHS", models.note.tenant_task.path)
    tenants.tenant_queue_of_admin("imports")
    for name in ("public", "acme"):
        with schema_context(name):
            models.note.using(tenant=tenants.ADMIN_TENANT).enqueue("whose", f"by the admin of {name}")
    work()
    assert entries() == {"public": ["by the admin of public"], "acme": ["by the admin of acme"], "umbrella": []}


def test_what_is_enqueued_in_public_for_no_tenant_runs_there() -> None:
    job = models.note.enqueue("", "housekeeping")
    work()
    job.refresh_from_db()
    assert (job.state, job.result) == (State.FINISHED, "public")


def test_plain_rq_runs_in_public_what_says_so_by_its_meta() -> None:
    """The tenant's name alone may be what was asked for in the worker."""
    queue = django_rq.get_queue("imports")
    meta = {"tenant_slots_context": {"schema": "public"}}
    named, told = queue.enqueue(models.note, "public", "named"), queue.enqueue(models.note, "public", "told", meta=meta)
    work()
    assert entries()["public"] == ["told"]
    assert (named.is_failed, told.is_finished) == (True, True)


IN_ONE_PROCESS = WORKERS[1:3]
"""Those of ours that run one job after the other there."""


def after_schema_was_left(worker_class: str, *, include_public: bool) -> tuple[object, TenantJob]:
    """Where a plain job finds itself after another one has left a schema, and a tenant's job after both."""
    queue = django_rq.get_queue("imports")
    queue.enqueue(models.leave_schema, "acme", include_public)
    plain = queue.enqueue(models.schema_here)
    ours = models.note.enqueue("umbrella", "after it")
    work(worker_class)
    ours.refresh_from_db()
    return Job.fetch(plain.id, connection=queue.connection).return_value(), ours


@pytest.mark.parametrize("worker_class", IN_ONE_PROCESS)
def test_the_schema_that_a_job_leaves_is_not_that_of_the_next_one(worker_class: str) -> None:
    plain, ours = after_schema_was_left(worker_class, include_public=False)
    assert (plain, ours.state, ours.result) == ("public", State.FINISHED, "umbrella")


def entries_after_garbage(worker_class: str) -> dict[str, list[str]]:
    """What a job of one schema has written when Python has collected what the failed one of another schema had left."""
    with schema_context("acme"):
        models.fail_in_schema.enqueue("acme")
    with schema_context("umbrella"):
        models.note_after_collection.enqueue("umbrella", "a secret")
    work(worker_class)
    return entries()


@pytest.mark.parametrize("worker_class", IN_ONE_PROCESS)
def test_nor_does_what_a_failed_job_left_to_be_collected_set_it_back(worker_class: str) -> None:
    assert entries_after_garbage(worker_class) == {"public": [], "acme": [], "umbrella": ["a secret"]}


def test_control_rqs_worker_without_a_process_for_each_job_has_it_set_back() -> None:
    assert entries_after_garbage("rq.SimpleWorker")["umbrella"] == []


def test_control_rqs_worker_without_a_process_for_each_job_leaves_it_to_the_next_one() -> None:
    plain, _ = after_schema_was_left("rq.SimpleWorker", include_public=True)
    assert plain == "acme"


@pytest.fixture
def url_of_nowhere() -> str:
    """Of sessions that find our tables only once django-tenants has told them where to look, as with another name for
    the public schema.
    """
    url = os.environ["DATABASE_URL"]
    url += ("&" if "?" in url else "?") + "options=-csearch_path%3Dnowhere"
    with psycopg.connect(url) as session, pytest.raises(psycopg.errors.UndefinedTable):
        session.execute("SELECT 1 FROM tenant_slots_tenantjob")
    return url


@pytest.mark.parametrize("worker_class", IN_ONE_PROCESS)
def test_jobs_one_after_the_other_find_their_tables_though_django_tenants_names_a_schema_once(
    worker_class: str, url_of_nowhere: str
) -> None:
    for schema in SCHEMAS:
        with schema_context(schema):
            models.note_here.enqueue_many([((f"{schema} {number}",), {}) for number in range(2)])
    work(worker_class, DATABASE_URL=url_of_nowhere, TEST_LIMIT_SET_CALLS="1")
    assert entries() == {"public": [], **{schema: [f"{schema} 0", f"{schema} 1"] for schema in SCHEMAS}}


def test_our_tables_are_in_the_public_schema_only() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT schemaname FROM pg_tables WHERE tablename = 'tenant_slots_tenantjob'")
        assert cursor.fetchall() == [("public",)]


def test_a_right_project_has_no_messages() -> None:
    assert run_checks(tags=["tenant_slots"]) == []


@pytest.mark.parametrize("app", ["tenant_slots", "tenant_slots.apps.TenantSlotsConfig"])
def test_our_app_among_the_tenants_apps_is_an_error(app: str) -> None:
    with override_settings(TENANT_APPS=[*settings.TENANT_APPS, app]):
        (message,) = run_checks(tags=["tenant_slots"])
    assert (message.id, "SHARED_APPS" in str(message.hint)) == ("tenant_slots.E010", True)


def test_our_app_among_those_of_a_type_of_tenants_is_an_error() -> None:
    types = {"public": {"APPS": ["tenant_slots"]}, "shop": {"APPS": ["tenant_slots"]}}
    with override_settings(HAS_MULTI_TYPE_TENANTS=True, TENANT_TYPES=types):
        (message,) = run_checks(tags=["tenant_slots"])
    assert (message.id, "'shop'" in message.msg) == ("tenant_slots.E010", True)


def test_a_project_without_the_context_is_warned() -> None:
    with override_settings(TENANT_SLOTS={}):
        assert [message.id for message in run_checks(tags=["tenant_slots"])] == ["tenant_slots.W003"]
