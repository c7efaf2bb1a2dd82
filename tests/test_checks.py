"""Every misconfiguration has one message that names it, and a right configuration has none."""

from __future__ import annotations

import functools
import traceback
from contextlib import contextmanager
from typing import Any

import pytest
from django.conf import settings
from django.core.checks import run_checks
from django.db import connection
from django.test import override_settings

from tenant_slots import conf, fleet, queue_directory
from tenant_slots.exceptions import UnusableQueue
from tenant_slots.models import TenantJob
from tenant_slots.setting_rules import RULES
from tenant_slots.tasks.registry import registered
from tests import jobs
from tests.repair.test_doctor import UNUSABLE


def ids() -> list[str]:
    return [message.id or "" for message in run_checks(tags=["tenant_slots"])]


def test_a_valid_configuration_has_no_messages() -> None:
    assert ids() == []


@pytest.mark.django_db
def test_a_database_that_leaves_columns_of_an_index_out_is_no_reason_to_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection.features, "supports_covering_indexes", False)
    assert TenantJob.check(databases=["default"]) == []
    of_django = super(TenantJob, TenantJob).check(databases=["default"])
    assert {message.id for message in of_django} == {"models.W040"}, "control"


def test_every_setting_has_a_rule() -> None:
    assert set(RULES) == conf.known_names()


@pytest.mark.parametrize(
    ("configured", "expected"),
    [
        (["DEFAULT_MAX_JOB"], "tenant_slots.E001"),
        ({"DEFAULT_MAX_JOBS": 1}, "tenant_slots.E002"),
        ({"DEFAULT_MAX_JOB": -1}, "tenant_slots.E003"),
        ({"DEFAULT_MAX_JOB": 10**6}, "tenant_slots.E003"),
        ({"DEFAULT_MAX_JOB": True}, "tenant_slots.E003"),
        ({"DEFAULT_MAX_JOB": {"imports": "two"}}, "tenant_slots.E003"),
        ({"DEFAULT_MAX_JOB": "tests.nowhere.limit"}, "tenant_slots.E003"),
        ({"DEFAULT_SHARE": 0}, "tenant_slots.E003"),
        ({"DEFAULT_SHARE": 1001}, "tenant_slots.E003"),
        ({"DEFAULT_SHARE": 1.5}, "tenant_slots.E003"),
        ({"DEFAULT_SHARE": {"imports": None}}, "tenant_slots.E003"),
        ({"DEFAULT_SHARE": "tests.nowhere.share"}, "tenant_slots.E003"),
        ({"DEFAULT_RATE": 100}, "tenant_slots.E003"),
        ({"DEFAULT_RATE": "100"}, "tenant_slots.E003"),
        ({"DEFAULT_RATE": "100/month"}, "tenant_slots.E003"),
        ({"DEFAULT_RATE": {"imports": "0/m"}}, "tenant_slots.E003"),
        ({"DEFAULT_RATE": "tests.nowhere.rate"}, "tenant_slots.E003"),
        ({"AUTO_CREATE": "no"}, "tenant_slots.E003"),
        ({"REQUIRE_TENANT": 1}, "tenant_slots.E003"),
        ({"RESCHEDULE_DELAY": 0}, "tenant_slots.E003"),
        ({"BEAT_INTERVAL": -5}, "tenant_slots.E003"),
        ({"LEASE_TTL": "20"}, "tenant_slots.E003"),
        ({"LEASE_TTL": 0.9, "BEAT_INTERVAL": 0.1}, "tenant_slots.E003"),
        ({"LEASE_TTL": 25 * 24 * 3600}, "tenant_slots.E003"),
        ({"SWEEP_INTERVAL": None}, "tenant_slots.E003"),
        ({"MAX_CRASHES": -1}, "tenant_slots.E003"),
        ({"MAX_INTERRUPTIONS": 1.5}, "tenant_slots.E003"),
        ({"UNKNOWN_TASK_WAIT": -1}, "tenant_slots.E003"),
        ({"ON_LOST_DATABASE": "panic"}, "tenant_slots.E003"),
        ({"MAX_ARGS_BYTES": 1.5}, "tenant_slots.E003"),
        ({"RETENTION": "a week"}, "tenant_slots.E003"),
        ({"RETENTION": 10**5000}, "tenant_slots.E003"),
        ({"QUEUE_WEIGHTS": {10**5000: 1}}, "tenant_slots.E009"),
        ({"QUEUE_WEIGHTS": {"imports": 0}}, "tenant_slots.E003"),
        ({"PROJECT_VERSION": 7}, "tenant_slots.E003"),
        ({"PROJECT_VERSION": "7" * 101}, "tenant_slots.E003"),
        ({"QUEUE_WEIGHTS": {"imports": 10**400}}, "tenant_slots.E003"),
        ({"LEASE_TTL": 6, "BEAT_INTERVAL": 5}, "tenant_slots.E004"),
        ({"DATABASE": "nowhere"}, "tenant_slots.E005"),
        ({"DATABASE": ["default"]}, "tenant_slots.E003"),
        ({"MAY_VIEW_HEALTH": ".access.is_staff"}, "tenant_slots.E003"),
        ({"MAY_VIEW_HEALTH": ".access"}, "tenant_slots.E003"),
        ({"CAPTURE_CONTEXT": ["", "tests.contexts.capture"]}, "tenant_slots.E003"),
        ({"JOB_CONTEXT": [""]}, "tenant_slots.E003"),
    ],
)
def test_a_wrong_setting_is_reported(configured: Any, expected: str) -> None:
    with override_settings(TENANT_SLOTS=configured):
        assert set(ids()) == {expected}


def takes_three(one: str, two: str, three: str) -> Any: ...


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("DEFAULT_MAX_JOB", "(tenant, queue)"),
        ("DEFAULT_SHARE", "(tenant, queue)"),
        ("DEFAULT_RATE", "(tenant, queue)"),
        ("CAPTURE_CONTEXT", "()"),
        ("JOB_CONTEXT", "(job)"),
        ("MAY_VIEW_JOB", "(request, job)"),
        ("MAY_VIEW_HEALTH", "(request)"),
        ("MAY_VIEW_METRICS", "(request)"),
    ],
)
def test_a_callable_that_cannot_be_called_as_it_will_be_is_named(name: str, given: str) -> None:
    """Each enqueue, each job or each request would be an error."""
    path = f"{__name__}.takes_three"
    with override_settings(TENANT_SLOTS={name: path}):
        (message,) = run_checks(tags=["tenant_slots"])
    assert message.id == "tenant_slots.E003"
    assert str(message.hint).startswith(f"{path}(one: 'str', two: 'str', three: 'str')")
    assert f" cannot be called with {given}: " in str(message.hint)


def may_view_or_not(*asked: Any, **more: Any) -> bool:
    return False


class Opened:
    """A context manager for any job."""

    def __init__(self, job: Any, *, loud: bool = False) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *error: Any) -> None: ...


def with_settings(function: Any) -> Any:
    """As a project's decorator that gives a function more than its caller does."""

    @functools.wraps(function)
    def called(*given: Any) -> Any:
        return function(*given, "settings")

    return called


@with_settings
def may_view_with(request: Any, own: str) -> bool:
    return False


@contextmanager
@with_settings
def opened_with(job: Any, own: str) -> Any:
    yield


@contextmanager
def opened_for_nobody() -> Any:
    yield


def test_what_a_decorator_adds_is_not_asked_of_who_calls() -> None:
    right = {"MAY_VIEW_HEALTH": f"{__name__}.may_view_with", "JOB_CONTEXT": f"{__name__}.opened_with"}
    with override_settings(TENANT_SLOTS=right):
        assert ids() == []
    with override_settings(TENANT_SLOTS={"JOB_CONTEXT": f"{__name__}.opened_for_nobody"}):
        assert ids() == ["tenant_slots.E003"]


def test_one_that_can_be_called_so_is_accepted_whatever_else_it_takes() -> None:
    own = {"MAY_VIEW_JOB": "may_view_or_not", "MAY_VIEW_HEALTH": "may_view_or_not", "JOB_CONTEXT": "Opened"}
    right = {name: f"{__name__}.{path}" for name, path in own.items()}
    with override_settings(TENANT_SLOTS={**right, "CAPTURE_CONTEXT": ["builtins.dict", "tests.contexts.capture"]}):
        assert ids() == []


def test_valid_values_are_accepted() -> None:
    right = {
        "DEFAULT_MAX_JOB": {"imports": 2},
        "DEFAULT_SHARE": {"imports": 1000},
        "DEFAULT_RATE": {"imports": "100/m", "reports": None},
        "LEASE_TTL": 2,
        "BEAT_INTERVAL": 0.5,
        "MAX_CRASHES": 0,
        "MAX_INTERRUPTIONS": 0,
        "UNKNOWN_TASK_WAIT": 0,
        "ON_LOST_DATABASE": "stop",
        "PROJECT_VERSION": "7" * 100,
        "QUEUE_WEIGHTS": {"imports": 6, "reports": 0.5},
    }
    with override_settings(TENANT_SLOTS=right):
        assert ids() == []


@pytest.mark.parametrize("rate", ["100/s", "100/minute", None, "tests.test_rate_limits.rate_of"])
def test_a_rate_for_all_is_a_text_or_the_path_of_a_callable(rate: Any) -> None:
    with override_settings(TENANT_SLOTS={"DEFAULT_RATE": rate}):
        assert ids() == []


def test_a_wrong_rate_is_named_with_what_to_write() -> None:
    with override_settings(TENANT_SLOTS={"DEFAULT_RATE": {"imports": "100/month"}}):
        (message,) = run_checks(tags=["tenant_slots"])
    assert "'100/month' cannot be a rate: write it as \"100/m\"" in str(message.hint)


def test_sqlite_without_immediate_transactions_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    databases = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "x", "OPTIONS": {}}}
    monkeypatch.setattr(settings, "DATABASES", databases)
    assert ids() == ["tenant_slots.W001"]


def test_a_database_in_which_nothing_is_committed_by_itself_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "DATABASES", {"default": settings.DATABASES["default"] | {"AUTOCOMMIT": False}})
    assert ids() == ["tenant_slots.E020"]


def test_a_missing_django_rq_is_reported() -> None:
    with override_settings(INSTALLED_APPS=[app for app in settings.INSTALLED_APPS if app != "django_rq"]):
        assert ids() == ["tenant_slots.E006"]


def test_a_job_on_an_unknown_queue_is_reported() -> None:
    assert jobs.record.tenant_task.path in registered
    with override_settings(RQ_QUEUES={"reports": {"URL": "redis://127.0.0.1/0"}}):
        messages = run_checks(tags=["tenant_slots"])
    assert {message.id for message in messages} == {"tenant_slots.E007"}
    assert "tests.jobs.record" in {message.obj for message in messages}


@pytest.mark.parametrize("value", [None, ["imports"], "imports"])
def test_queues_of_rq_that_are_no_dict_are_reported(value: Any) -> None:
    with override_settings(RQ_QUEUES=value):
        assert set(ids()) == {"tenant_slots.E018", "tenant_slots.E007"}
        assert conf.rq_queues() == {}


@pytest.mark.parametrize("wrong", [wrong for wrong in UNUSABLE if wrong != {"URL": None}], ids=str)
def test_a_queue_whose_settings_lead_to_no_redis_is_named(wrong: Any) -> None:
    with override_settings(RQ_QUEUES={**settings.RQ_QUEUES, "reports": wrong}):
        (message,) = run_checks(tags=["tenant_slots"])
    assert (message.id, message.is_serious()) == ("tenant_slots.E019", True)
    assert "RQ_QUEUES['reports'] does not say how to reach its Redis: " in message.msg
    assert '"URL"' in (message.hint or "")


@pytest.mark.parametrize("url", [None, ""])
def test_a_url_that_is_not_set_is_named_and_stops_no_build(url: str | None) -> None:
    with override_settings(RQ_QUEUES={**settings.RQ_QUEUES, "reports": {"URL": url}}):
        (message,) = run_checks(tags=["tenant_slots"])
    assert (message.id, message.is_serious()) == ("tenant_slots.W007", False)
    assert "RQ_QUEUES['reports']" in message.msg


@pytest.mark.parametrize("password", ["s3cr#et", "s3cr/et", "s3cr?et", "s3cr[et", "s3cr\u2100et"])
def test_no_part_of_a_password_that_makes_its_url_unreadable_is_told(
    password: str, caplog: pytest.LogCaptureFixture
) -> None:
    with override_settings(RQ_QUEUES={**settings.RQ_QUEUES, "reports": {"URL": f"redis://:{password}@h:6379/0"}}):
        (message,) = run_checks(tags=["tenant_slots"])
        fleet.known()
        with pytest.raises(UnusableQueue) as raised:
            queue_directory.queue_named("reports")
    told = f"{message.msg}{message.hint}{caplog.text}{''.join(traceback.format_exception(raised.value))}"
    assert "s3cr" not in told
    assert "percent-encoded" in message.msg


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("x" * 101, "101 characters, at most 100"),
        (5, "no str"),
        (None, "no str"),
        ("a\0b", "a NUL character"),
        ("a\ud800b", "a surrogate pair"),
    ],
)
def test_a_queue_whose_name_no_row_can_have_is_named_beside_those_that_can_be_used(
    name: Any, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    with override_settings(RQ_QUEUES={**settings.RQ_QUEUES, name: settings.RQ_QUEUES["imports"]}):
        (message,) = run_checks(tags=["tenant_slots"])
        assert {"reports", name} & set(queue_directory.queues_beside("imports")) == {"reports"}
        assert list(fleet.known().unasked) == list(queue_directory.unasked()) == [name]
    assert (message.id, problem in message.msg) == ("tenant_slots.E019", True)
    assert f"{message.msg}{message.hint}{caplog.text}".encode(), "a log is a file of UTF-8"


def test_a_redis_that_is_away_is_no_message_and_is_not_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where an image is built. With all the ways to name one that django-rq has."""
    monkeypatch.setattr("redis.connection.AbstractConnection.connect", lambda *_: pytest.fail("connected"))
    ways: list[dict[str, Any]] = [
        {"URL": "redis://127.0.0.1:1/0"},
        {"HOST": "127.0.0.1", "PORT": 1, "DB": 0},
        {"UNIX_SOCKET_PATH": "/nowhere/redis.sock", "DB": 0},
        {"SENTINELS": [("127.0.0.1", 1)], "MASTER_NAME": "jobs", "DB": 0},
    ]
    for way in ways:
        with override_settings(RQ_QUEUES={**settings.RQ_QUEUES, "reports": way}):
            assert ids() == []


def test_an_overflow_queue_that_rq_does_not_have_is_reported() -> None:
    with override_settings(RQ_QUEUES={name: settings.RQ_QUEUES[name] for name in ("imports", "reports")}):
        messages = run_checks(tags=["tenant_slots"])
    assert {message.id for message in messages} == {"tenant_slots.E007"}
    assert "tests.jobs.throttled is throttled to queue 'imports_slow'" in " ".join(one.msg for one in messages)


@pytest.mark.parametrize(
    ("name", "value"), [("QUEUE_WEIGHTS", 1), ("DEFAULT_MAX_JOB", 1), ("DEFAULT_SHARE", 1), ("DEFAULT_RATE", "5/m")]
)
def test_a_value_for_a_queue_that_rq_does_not_have_is_reported(name: str, value: object) -> None:
    with override_settings(TENANT_SLOTS={name: {"imports": value, "import_slow": value}}):
        (message,) = run_checks(tags=["tenant_slots"])
    assert message.id == "tenant_slots.E009"
    assert f"{name}\"] names queue 'import_slow'" in message.msg


def test_a_queue_for_the_admin_that_rq_does_not_have_is_reported() -> None:
    with override_settings(TENANT_SLOTS={"ADMIN_QUEUE": "staff"}):
        (message,) = run_checks(tags=["tenant_slots"])
    assert message.id == "tenant_slots.E015"
    assert "'staff'" in message.msg
    with override_settings(TENANT_SLOTS={"ADMIN_QUEUE": "imports"}):
        assert run_checks(tags=["tenant_slots"]) == []


@pytest.mark.parametrize(
    ("rq", "expected"),
    [
        ({}, ["tenant_slots.W002"]),
        ({"WORKER_CLASS": "rq.SimpleWorker"}, ["tenant_slots.W002"]),
        ({"WORKER_CLASS": "tests.nowhere.Worker"}, ["tenant_slots.E008"]),
        ({"WORKER_CLASS": ".nowhere.Worker"}, ["tenant_slots.E008"]),
        ({"WORKER_CLASS": ".Worker"}, ["tenant_slots.E008"]),
        ({"WORKER_CLASS": "tenant_slots.workers.TenantWorker"}, []),
        ("tenant_slots.workers.TenantWorker", ["tenant_slots.E018", "tenant_slots.W002"]),
        (["WORKER_CLASS"], ["tenant_slots.E018", "tenant_slots.W002"]),
        (None, ["tenant_slots.E018", "tenant_slots.W002"]),
    ],
)
def test_the_worker_class_is_checked(rq: Any, expected: list[str]) -> None:
    with override_settings(RQ=rq):
        assert sorted(ids()) == expected  # Django keeps its checks in a set


POSTGRESQL = {"ENGINE": "django.db.backends.postgresql", "NAME": "x"}
SCHEMAS = {"ENGINE": "django_tenants.postgresql_backend", "NAME": "x"}
READY_MADE = [f"tenant_slots.contrib.{name}.job_context" for name in ("localization", "opentelemetry", "sentry")]


@pytest.mark.parametrize(
    ("databases", "configured", "expected"),
    [
        ({"default": SCHEMAS}, {}, ["tenant_slots.W003"]),
        ({"default": SCHEMAS, "slots": POSTGRESQL}, {"DATABASE": "slots"}, ["tenant_slots.W003"]),
        ({"default": SCHEMAS}, {"JOB_CONTEXT": READY_MADE}, ["tenant_slots.W003"]),
        ({"default": SCHEMAS}, {"JOB_CONTEXT": [*READY_MADE, "tests.contexts.job_context"]}, []),
        ({"default": SCHEMAS}, {"JOB_CONTEXT": None}, ["tenant_slots.E003"]),
        ({"default": POSTGRESQL}, {"JOB_CONTEXT": READY_MADE}, []),
    ],
)
def test_jobs_that_run_in_the_public_schema_are_warned_of(
    databases: Any, configured: Any, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "DATABASES", databases)
    with override_settings(TENANT_SLOTS=configured):
        assert ids() == expected


@pytest.mark.parametrize("name", ["TENANT_APPS", "TENANT_TYPES"])
def test_a_setting_of_another_package_may_be_none(name: str) -> None:
    with override_settings(**{name: None, "HAS_MULTI_TYPE_TENANTS": True}):
        assert ids() == []


@pytest.mark.parametrize(
    ("immediate", "deploy", "expected"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_immediate_mode_is_warned_of_where_a_project_is_deployed(
    immediate: bool, deploy: bool, expected: bool, settings: Any
) -> None:
    settings.TENANT_SLOTS = {"IMMEDIATE": immediate}
    found = run_checks(tags=["tenant_slots"], include_deployment_checks=deploy)
    assert ("tenant_slots.W005" in {message.id for message in found}) is expected
