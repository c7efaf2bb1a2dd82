"""Names that users have in their code, settings and unit files. A change here breaks them."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import pytest
from django.core.management import get_commands
from django.utils.module_loading import import_string
from rq import SimpleWorker, Worker

import tenant_slots
from tenant_slots import hold_slot, report_progress, tenant_job, tenant_scope
from tenant_slots.conf import AppSettings, known_names
from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.tasks.options import UNCHANGED
from tests import jobs
from tests.processes import ROOT, environment
from tests.reports_app.models import Report

OPTIONAL = [
    *("timeout", "result_ttl", "failure_ttl", "description", "meta", "retry"),
    *("on_busy", "throttle", "unique_for", "unique_key", "unique_until", "debounce", "max_wait", "key"),
]

DEFAULTS = {
    "DEFAULT_MAX_JOB": 1,
    "DEFAULT_SHARE": 1,
    "DEFAULT_RATE": None,
    "AUTO_CREATE": True,
    "REQUIRE_TENANT": False,
    "DATABASE": "default",
    "RESCHEDULE_DELAY": 60,
    "BEAT_INTERVAL": 5,
    "LEASE_TTL": 20,
    "SWEEP_INTERVAL": 5,
    "MAX_CRASHES": 3,
    "MAX_INTERRUPTIONS": 20,
    "UNKNOWN_TASK_WAIT": 600,
    "ON_LOST_DATABASE": "continue",
    "MAX_ARGS_BYTES": 65536,
    "CAPTURE_CONTEXT": (),
    "JOB_CONTEXT": (),
    "RETENTION": 7 * 24 * 3600,
    "QUEUE_WEIGHTS": {},
    "ADMIN_QUEUE": "",
    "PROJECT_VERSION": "",
    "MAY_VIEW_JOB": "",
    "MAY_VIEW_HEALTH": "",
    "MAY_VIEW_METRICS": "",
    "METRICS_TENANTS": 0,
}


def parameters(function: Any) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(function).parameters)


def test_the_package_exports_what_users_import() -> None:
    names = {"tenant_job", "Reschedule", "TenantBusy", "Throttle", "hold_slot", "report_progress", "capture_context"}
    assert names | {"tenant_scope"} <= set(tenant_slots.__all__)


def test_the_backend_for_djangos_tasks_keeps_its_path_and_what_using_takes() -> None:
    backend = import_string("tenant_slots.tasks_backend.TenantSlotsBackend")
    assert {"tenant", "key", "timeout", "retry"} <= set(parameters(backend.task_class.using))
    supported = ("defer", "async_task", "get_result", "priority")
    assert all(getattr(backend, f"supports_{name}") for name in supported)
    assert list(parameters(tenant_scope)) == ["tenant"]
    assert callable(import_string("tenant_slots.testing.task_backends.TaskBackendTests").run_tasks)


def test_hold_slot_takes_tenant_and_queue_and_options_by_keyword() -> None:
    tenant, queue, *options = parameters(hold_slot).values()
    assert [tenant.name, queue.name] == ["tenant", "queue"]
    assert [(one.name, one.default) for one in options] == [("timeout", 0), ("priority", 0), ("key", "")]
    assert {one.kind for one in options} == {inspect.Parameter.KEYWORD_ONLY}


def test_report_progress_takes_done_and_total_and_any_names() -> None:
    done, total, stats = parameters(report_progress).values()
    assert [done.name, total.name, total.default, stats.kind] == ["done", "total", None, inspect.Parameter.VAR_KEYWORD]


def test_the_view_of_a_jobs_status_keeps_its_path_and_its_argument() -> None:
    assert list(parameters(import_string("tenant_slots.views.job_status"))) == ["request", "uuid"]


def test_the_decorator_takes_a_queue_a_tenant_and_options_by_keyword() -> None:
    queue, tenant, *options = parameters(tenant_job).values()
    assert (queue.name, queue.kind, queue.default) == ("queue", queue.POSITIONAL_OR_KEYWORD, queue.empty)
    assert (tenant.name, tenant.kind, tenant.default) == ("tenant", tenant.KEYWORD_ONLY, tenant.empty)
    known = {option.name: option for option in options}
    assert [name for name in OPTIONAL if name not in known] == []
    assert {option.kind for option in options} == {inspect.Parameter.KEYWORD_ONLY}
    assert [option.name for option in options if option.default is not None] == [], "a new option must be optional"


def test_a_throttle_takes_threshold_per_and_queue() -> None:
    assert list(parameters(tenant_slots.Throttle)) == ["threshold", "per", "queue"]


def test_a_decorated_function_stays_an_importable_function() -> None:
    assert inspect.isfunction(jobs.record)
    assert import_string("tests.jobs.record") is jobs.record
    assert list(parameters(jobs.record)) == ["tenant", "name", "history", "seconds"]


@pytest.mark.parametrize("name", ["enqueue", "delay", "enqueue_many", "using", "aenqueue", "aenqueue_many"])
def test_a_decorated_function_and_what_using_returns_can_enqueue(name: str) -> None:
    assert callable(getattr(jobs.record, name))
    assert callable(getattr(jobs.record.using(priority=1), name))
    for method in (Report.execute, Report().execute, Report().execute.using(priority=1)):
        assert callable(getattr(method, name))


def test_using_takes_its_overrides_by_keyword_and_all_are_optional() -> None:
    overrides = parameters(jobs.record.using)
    assert {
        "priority",
        "run_after",
        "queue",
        "tenant",
        "key",
        "after",
        "timeout",
        "meta",
        "retry",
        "debounce",
        "max_wait",
    } <= set(overrides)
    assert {override.kind for override in overrides.values()} == {inspect.Parameter.KEYWORD_ONLY}
    may_be_none = {name for name, override in overrides.items() if override.default is UNCHANGED}
    assert may_be_none == {"timeout", "meta", "retry", "expires", "debounce", "max_wait"}
    assert {overrides[name].default for name in overrides.keys() - may_be_none} == {None}


@pytest.mark.parametrize("name", ["cancel", "retry", "refresh_from_db", "acancel", "aretry"])
def test_a_job_can_be_canceled_and_retried_without_arguments(name: str) -> None:
    required = [one for one in parameters(getattr(TenantJob(), name)).values() if one.default is one.empty]
    assert [one.name for one in required if one.kind is not one.VAR_KEYWORD] == []


def test_the_fields_of_a_job_keep_their_names() -> None:
    documented = {
        "uuid", "tenant_queue", "task", "args", "kwargs", "state", "attempt", "priority", "run_after", "key",
        "enqueued_at", "admitted_at", "started_at", "ended_at", "beat_at", "worker", "result", "error",
        "unique_key", "object_model", "object_pk",
        "progress", "stats", "context",
    }  # fmt: skip
    assert documented <= {field.name for field in TenantJob._meta.get_fields()}


def test_the_fields_of_a_tenant_queue_keep_their_names() -> None:
    documented = {"tenant", "queue", "max_job", "current_job", "paused"}
    assert documented <= {field.name for field in TenantQueue._meta.get_fields()}


def test_the_states_keep_their_names() -> None:
    assert State.values == ["scheduled", "waiting", "queued", "running", "finished", "failed", "canceled"]


def test_the_settings_keep_their_names_and_defaults() -> None:
    assert {name: vars(AppSettings)[name].default for name in known_names() if name in DEFAULTS} == DEFAULTS


def test_the_commands_keep_their_names() -> None:
    ours = {name for name, app in get_commands().items() if app == "tenant_slots"}
    assert {"slots_status", "slots_limit", "slots_sweep", "slots_doctor"} <= ours


@pytest.mark.parametrize(
    "name",
    ["set_limit", "set_override", "end_override", "reset_to_default", "set_max_job_per_key", "set_max_waiting", "pause",
     "resume"],
)  # fmt: skip
def test_what_changes_a_limit_or_a_pause_takes_who_why_and_the_version_that_was_seen(name: str) -> None:
    assert {"by", "reason", "version"} <= set(parameters(getattr(TenantQueue, name)))


@pytest.mark.parametrize(("name", "base"), [("TenantWorker", Worker), ("TenantSimpleWorker", SimpleWorker)])
def test_the_worker_classes_keep_their_paths(name: str, base: type) -> None:
    assert issubclass(import_string(f"tenant_slots.workers.{name}"), base)


def test_rqs_function_can_be_imported_before_django_is_set_up() -> None:
    """As SpawnWorker does; jobs that are in Redis during an upgrade name it."""
    code = "import tenant_slots; assert callable(tenant_slots.run_job); assert callable(tenant_slots.tenant_job)"
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=ROOT, env=environment(), check=True, timeout=60)
