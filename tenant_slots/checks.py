"""System checks: what is wrong with a project's configuration, before anything runs."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core import checks
from django.core.checks import CheckMessage, Error, Warning
from django.utils.module_loading import import_string
from rq.worker import BaseWorker

from tenant_slots import conf, rates, surroundings
from tenant_slots.conf import app_settings
from tenant_slots.django_tasks import use
from tenant_slots.exceptions import InvalidRate
from tenant_slots.models import HIGHEST_LIMIT, HIGHEST_SHARE
from tenant_slots.models.queue_minute import VERSION_LENGTH
from tenant_slots.tasks.registry import registered
from tenant_slots.tenants import is_limit, is_share
from tenant_slots.validation import is_flag, is_number, is_positive, is_whole

Problem = str | None

MOST_TENANTS_WITH_METRICS = 1000
"""Each is ten time series that Prometheus keeps."""

LONGEST = 100 * 366 * 24 * 3600
"""Seconds, a hundred years: what reaches further leads out of the calendar, and a database computes no time from it."""

HIGHEST_WEIGHT = sys.float_info.max
"""A worker that computes with a higher one, which only an int can be, ends with an OverflowError."""

RECOMMENDED_WORKER = "tenant_slots.workers.TenantPreforkWorker"


def register_all() -> None:
    for check in (
        check_settings,
        check_leases,
        check_database,
        check_apps,
        check_queues,
        check_weights,
        check_admin_queue,
        check_worker_class,
        check_schemas,
        check_foreign_tasks,
        surroundings.check_backend,
        surroundings.check_time_zones,
        surroundings.check_system,
    ):
        checks.register(check, "tenant_slots")
    checks.register(surroundings.check_sqlite, "tenant_slots", deploy=True)
    checks.register(check_immediate, "tenant_slots", deploy=True)


def check_settings(**_: Any) -> list[CheckMessage]:
    """E001, E002, E003: the setting, its keys and its values."""
    configured = getattr(settings, "TENANT_SLOTS", {})
    if not isinstance(configured, Mapping):
        return [Error("TENANT_SLOTS is not a dict.", hint="Write TENANT_SLOTS = {...}.", id="tenant_slots.E001")]
    unknown = [
        Error(
            f"TENANT_SLOTS has an unknown key {name!r}.",
            hint=f"The keys are: {', '.join(sorted(conf.known_names()))}.",
            id="tenant_slots.E002",
        )
        for name in configured
        if name not in conf.known_names()
    ]
    wrong = [
        Error(f"TENANT_SLOTS[{name!r}] is {configured[name]!r}.", hint=problem, id="tenant_slots.E003")
        for name, rule in RULES.items()
        if name in configured and (problem := rule(configured[name]))
    ]
    return [*unknown, *wrong]


def check_immediate(**_: Any) -> list[CheckMessage]:
    """W005, with ``check --deploy``: whoever enqueues a job runs it."""
    if not app_settings.IMMEDIATE:
        return []
    hint = "Set it in the settings of your development only, and start workers elsewhere."
    return [Warning('TENANT_SLOTS["IMMEDIATE"] is on: requests run jobs.', hint=hint, id="tenant_slots.W005")]


def check_leases(**_: Any) -> list[CheckMessage]:
    """E004: a lease that ends before its second heartbeat is taken from a healthy job."""
    beat, lease = app_settings.BEAT_INTERVAL, app_settings.LEASE_TTL
    if _seconds(beat) or _seconds(lease) or lease >= 2 * beat:
        return []
    hint = f"Set LEASE_TTL to at least twice BEAT_INTERVAL: {2 * beat}."
    return [Error(f"LEASE_TTL {lease} is too short for BEAT_INTERVAL {beat}.", hint=hint, id="tenant_slots.E004")]


def check_database(**_: Any) -> list[CheckMessage]:
    """E005, W001: the database that holds the slots."""
    alias = app_settings.DATABASE
    if _text(alias):
        return []
    config = settings.DATABASES.get(alias)
    if config is None:
        hint = f"Name one of: {', '.join(settings.DATABASES)}."
        return [
            Error(f'TENANT_SLOTS["DATABASE"] is {alias!r}, not a key of DATABASES.', hint=hint, id="tenant_slots.E005")
        ]
    if config["ENGINE"].endswith("sqlite3") and config.get("OPTIONS", {}).get("transaction_mode") != "IMMEDIATE":
        return [
            Warning(
                f"Workers will fail with 'database is locked' on the SQLite database {alias!r}.",
                hint=f'Set DATABASES[{alias!r}]["OPTIONS"]["transaction_mode"] = "IMMEDIATE", or use PostgreSQL.',
                id="tenant_slots.W001",
            )
        ]
    return []


def check_apps(**_: Any) -> list[CheckMessage]:
    """E006: without django-rq there is no ``manage.py rqworker``."""
    if apps.is_installed("django_rq"):
        return []
    hint = 'Add "django_rq" after "tenant_slots" in INSTALLED_APPS.'
    return [Error("django_rq is not in INSTALLED_APPS.", hint=hint, id="tenant_slots.E006")]


def check_queues(**_: Any) -> list[CheckMessage]:
    """E007: queues and overflow queues of the decorated functions that are imported so far.

    For our own, a queue is chosen when they are enqueued.
    """
    tasks = [task for task in registered.values() if not task.path.startswith("tenant_slots.")]
    own = [(f"{task.path} uses queue", task.queue, task.path) for task in tasks]
    overflow = [
        (f"{task.path} is throttled to queue", rule.queue, task.path) for task in tasks for rule in task.throttle
    ]
    return _unknown_queues("tenant_slots.E007", [*own, *overflow])


def check_weights(**_: Any) -> list[CheckMessage]:
    """E009: a weight that no worker can use."""
    weights = app_settings.QUEUE_WEIGHTS
    if _weights(weights):
        return []
    text = 'TENANT_SLOTS["QUEUE_WEIGHTS"] weighs queue'
    return _unknown_queues("tenant_slots.E009", [(text, name, None) for name in weights])


def check_admin_queue(**_: Any) -> list[CheckMessage]:
    """E015: where bulk changes of the admin would wait for ever."""
    name = app_settings.ADMIN_QUEUE
    if not name or _queue(name):
        return []
    return _unknown_queues("tenant_slots.E015", [('TENANT_SLOTS["ADMIN_QUEUE"] names queue', name, None)])


def _unknown_queues(check_id: str, uses: Iterable[tuple[str, str, object]]) -> list[CheckMessage]:
    """An error for each use of a queue that RQ lacks; a use is what it says, the queue, and where it is written."""
    known = getattr(settings, "RQ_QUEUES", {})
    hint = f"Add it to RQ_QUEUES, or use one of: {', '.join(sorted(known)) or 'none so far'}."
    return [
        Error(f"{text} {queue!r}, which RQ_QUEUES does not have.", hint=hint, obj=where, id=check_id)
        for text, queue, where in uses
        if queue not in known
    ]


def check_worker_class(**_: Any) -> list[CheckMessage]:
    """E008, W002: limits hold with any worker class; slots of killed jobs come back at once only with ours."""
    configured = getattr(settings, "RQ", {}).get("WORKER_CLASS")
    try:
        worker_class = import_string(configured) if isinstance(configured, str) else configured
    except ImportError as error:
        return [Error(f'RQ["WORKER_CLASS"] cannot be imported: {error}.', id="tenant_slots.E008")]
    if isinstance(worker_class, type) and issubclass(worker_class, BaseWorker) and _is_ours(worker_class):
        return []
    hint = f'Set RQ = {{"WORKER_CLASS": "{RECOMMENDED_WORKER}"}}.'
    return [
        Warning("The slot of a killed job comes back late with this worker class.", hint=hint, id="tenant_slots.W002")
    ]


def check_schemas(**_: Any) -> list[CheckMessage]:
    """E010, W003: with django-tenants, where our tables are, and where jobs run."""
    return [*_tables_in_schemas(), *_jobs_in_public()]


def _tables_in_schemas() -> Iterator[CheckMessage]:
    """A job that is enqueued in a tenant's schema would be stored there, where no worker looks."""
    types = getattr(settings, "TENANT_TYPES", {}) if getattr(settings, "HAS_MULTI_TYPE_TENANTS", False) else {}
    public = getattr(settings, "PUBLIC_SCHEMA_NAME", "public")
    by_setting = {"TENANT_APPS": getattr(settings, "TENANT_APPS", ())}
    by_setting |= {f"TENANT_TYPES[{name!r}]": kind.get("APPS", ()) for name, kind in types.items() if name != public}
    for name, own in by_setting.items():
        if any(app.split(".")[0] == "tenant_slots" for app in own):
            hint = "Move it to SHARED_APPS; JOB_CONTEXT has jobs run in their tenant's schema."
            yield Error(f"tenant_slots is in {name}, so that its jobs vanish.", hint=hint, id="tenant_slots.E010")


def _jobs_in_public() -> Iterator[CheckMessage]:
    engine = surroundings.engine()
    if engine.startswith("django_tenants.") and not app_settings.JOB_CONTEXT:
        hint = 'Set TENANT_SLOTS["JOB_CONTEXT"] = "tenant_slots.contrib.schemas.job_context", and CAPTURE_CONTEXT.'
        yield Warning("Jobs run in the public schema of django-tenants.", hint=hint, id="tenant_slots.W003")


def check_foreign_tasks(**_: Any) -> list[CheckMessage]:
    """W006: Tasks of Django that take no slot although their function asks for one, among those imported so far."""
    if not use.is_used():
        return []
    from tenant_slots.django_tasks import foreign

    hint = f'Use "{use.BACKEND}" as the backend of this Task, or enqueue the function with its own .enqueue().'
    return [
        Warning(
            f"The Task {path} runs without a slot: backend {alias!r} does not know the @tenant_job inside it.",
            hint=hint,
            obj=path,
            id="tenant_slots.W006",
        )
        for path, alias in foreign.without_slots()
    ]


def _is_ours(worker_class: type) -> bool:
    return any(base.__module__.startswith("tenant_slots.workers.") for base in worker_class.__mro__)


def _seconds(value: object) -> Problem:
    return None if is_positive(value, LONGEST) else f"Give a number of seconds above 0, at most {LONGEST}."


def _seconds_or_none(value: object) -> Problem:
    return None if is_number(value, 0, LONGEST) else f"Give a number of seconds from 0 to {LONGEST}."


def _flag(value: object) -> Problem:
    return None if is_flag(value) else "Give True or False."


def _count(value: object) -> Problem:
    return None if is_whole(value, 0) else "Give a whole number, 0 or above."


def _positive_count(value: object) -> Problem:
    return None if is_whole(value, 1) else "Give a whole number, 1 or above."


def _bytes_or_none(value: object) -> Problem:
    return None if value is None or is_whole(value, 1) else "Give a number of bytes, or None for no bound."


def _limit(value: object) -> Problem:
    return _default(value, is_limit, f"a number from 0 to {HIGHEST_LIMIT}, a dict of such numbers by queue")


def _share(value: object) -> Problem:
    return _default(value, is_share, f"a number from 1 to {HIGHEST_SHARE}, a dict of such numbers by queue")


def _rate(value: object) -> Problem:
    if isinstance(value, str) and not rates.is_notation(value):
        return _importable(value)
    try:
        for rate in value.values() if isinstance(value, Mapping) else [value]:
            if rate is not None:
                rates.parse(rate)
    except InvalidRate as error:
        return f"{error} Or give a dict of rates by queue, the path of a callable, or None."
    return None


def _default(value: object, is_right: Callable[[object], bool], right: str) -> Problem:
    if isinstance(value, str):
        return _importable(value)
    values = list(value.values()) if isinstance(value, Mapping) else [value]
    return None if all(map(is_right, values)) else f"Give {right}, or the path of a callable."


def _importable(path: str) -> Problem:
    try:
        return None if callable(import_string(path)) else f"{path} is not callable."
    except (ImportError, TypeError) as error:  # TypeError: a path that begins with a dot
        return f"It cannot be imported: {error}."


def _may_view_job(value: object) -> Problem:
    return _decision(value, "callable(request, job) -> bool")


def _may_view_health(value: object) -> Problem:
    return _decision(value, "callable(request) -> bool")


def _decision(value: object, form: str) -> Problem:
    if not isinstance(value, str):
        return f"Give the dotted path of a {form}."
    problem = _importable(value) if value else None
    if value and not problem and inspect.iscoroutinefunction(import_string(value)):
        return f"{value} is async; give a plain function."
    return problem


def _text(value: object) -> Problem:
    return None if isinstance(value, str) else "Give the alias of a database."


def _queue(value: object) -> Problem:
    return None if isinstance(value, str) else "Give the name of a queue of RQ_QUEUES."


def _version(value: object) -> Problem:
    valid = isinstance(value, str) and len(value) <= VERSION_LENGTH and "\0" not in value
    return None if valid else f"Give a text of at most {VERSION_LENGTH} characters, such as the deployed commit."


def _on_lost_database(value: object) -> Problem:
    return None if value in ("continue", "stop") else 'Give "continue" or "stop".'


def _weights(value: object) -> Problem:
    valid = isinstance(value, Mapping) and all(is_positive(weight, HIGHEST_WEIGHT) for weight in value.values())
    return None if valid else "Give a dict of numbers above 0 by queue."


def _names(value: object) -> Problem:
    valid = isinstance(value, (list, tuple, set, frozenset)) and all(isinstance(name, str) for name in value)
    return None if valid else "Give a list of names of arguments."


def _tenants_with_metrics(value: object) -> Problem:
    valid = is_whole(value, 0, MOST_TENANTS_WITH_METRICS) or not _names(value)
    return (
        None
        if valid
        else (f"Give how many tenant queues are shown, from 0 to {MOST_TENANTS_WITH_METRICS}, or a list of tenants.")
    )


def _capture_context(value: object) -> Problem:
    return _callables(value, "() -> dict")


def _job_context(value: object) -> Problem:
    return _callables(value, "(job) that gives a context manager", _no_context_manager)


def _no_context_manager(path: str, entering: object) -> Problem:
    return f"{path} is a generator; decorate it with contextlib.contextmanager." if _is_generator(entering) else None


def _is_generator(function: object) -> bool:
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def _callables(
    value: object, signature: str, also: Callable[[str, object], Problem] = lambda path, found: None
) -> Problem:
    paths = ([value] if value else []) if isinstance(value, str) else value
    if not isinstance(paths, (list, tuple)) or not all(isinstance(path, str) for path in paths):
        return f"Give the dotted path of a callable {signature}, or a list of such paths."
    return next(filter(None, (_plain_callable(path, also) for path in paths)), None)


def _plain_callable(path: str, also: Callable[[str, object], Problem]) -> Problem:
    if problem := _importable(path):
        return problem
    found = import_string(path)
    return f"{path} is async; give a plain function." if inspect.iscoroutinefunction(found) else also(path, found)


RULES: dict[str, Callable[[object], Problem]] = {
    "DEFAULT_MAX_JOB": _limit,
    "DEFAULT_SHARE": _share,
    "DEFAULT_RATE": _rate,
    "AUTO_CREATE": _flag,
    "REQUIRE_TENANT": _flag,
    "IMMEDIATE": _flag,
    "DATABASE": _text,
    "RESCHEDULE_DELAY": _seconds,
    "BEAT_INTERVAL": _seconds,
    "LEASE_TTL": _seconds,
    "SWEEP_INTERVAL": _seconds,
    "MAX_CRASHES": _count,
    "JOBS_PER_HORSE": _positive_count,
    "HORSE_MAX_RSS": _bytes_or_none,
    "MAX_INTERRUPTIONS": _count,
    "UNKNOWN_TASK_WAIT": _seconds_or_none,
    "ON_LOST_DATABASE": _on_lost_database,
    "MAX_ARGS_BYTES": _count,
    "RETENTION": _seconds,
    "QUEUE_WEIGHTS": _weights,
    "HIDDEN_ARGUMENTS": _names,
    "CAPTURE_CONTEXT": _capture_context,
    "JOB_CONTEXT": _job_context,
    "ADMIN_QUEUE": _queue,
    "PROJECT_VERSION": _version,
    "MAY_VIEW_JOB": _may_view_job,
    "MAY_VIEW_HEALTH": _may_view_health,
    "MAY_VIEW_METRICS": _may_view_health,
    "METRICS_TENANTS": _tenants_with_metrics,
}
