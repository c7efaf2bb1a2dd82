"""System checks: what is wrong with a project's configuration, before anything runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core import checks
from django.core.checks import CheckMessage, Error, Warning
from django.utils.module_loading import import_string
from rq.worker import BaseWorker

from tenant_slots import conf, queue_directory, surroundings
from tenant_slots.conf import app_settings, rq_queues
from tenant_slots.django_tasks import use
from tenant_slots.named import NOT_IMPORTABLE
from tenant_slots.setting_rules import RULES
from tenant_slots.tasks.context import paths_in
from tenant_slots.tasks.registry import registered
from tenant_slots.validation import shown

RECOMMENDED_WORKER = "tenant_slots.workers.TenantPreforkWorker"
OWN_WORKER = f'{{"WORKER_CLASS": "{RECOMMENDED_WORKER}"}}'
SCHEMA_CONTEXT = "tenant_slots.contrib.schemas.job_context"


def register_all() -> None:
    for check in (
        check_settings,
        check_leases,
        check_database,
        check_apps,
        check_rq_settings,
        check_addresses,
        check_queues,
        check_values_by_queue,
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
        Error(f"TENANT_SLOTS[{name!r}] is {shown(configured[name])}.", hint=problem, id="tenant_slots.E003")
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
    if RULES["BEAT_INTERVAL"](beat) or RULES["LEASE_TTL"](lease) or lease >= 2 * beat:
        return []
    hint = f"Set LEASE_TTL to at least twice BEAT_INTERVAL: {2 * beat}."
    return [Error(f"LEASE_TTL {lease} is too short for BEAT_INTERVAL {beat}.", hint=hint, id="tenant_slots.E004")]


def check_database(**_: Any) -> list[CheckMessage]:
    """E005, E020, W001: the database that holds the slots."""
    alias = app_settings.DATABASE
    if RULES["DATABASE"](alias):
        return []
    config = settings.DATABASES.get(alias)
    if config is None:
        hint = f"Name one of: {', '.join(settings.DATABASES)}."
        return [
            Error(f'TENANT_SLOTS["DATABASE"] is {alias!r}, not a key of DATABASES.', hint=hint, id="tenant_slots.E005")
        ]
    if not config.get("AUTOCOMMIT", True):
        hint = "Set it to True, Django's default, and give what needs it another alias: no worker could commit."
        return [Error(f"AUTOCOMMIT is False for the database {alias!r}.", hint=hint, id="tenant_slots.E020")]
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


def check_rq_settings(**_: Any) -> list[CheckMessage]:
    """E018: RQ's own settings."""
    own = {
        "RQ_QUEUES": ('{"default": {"URL": "redis://…"}}', getattr(settings, "RQ_QUEUES", {})),
        "RQ": (OWN_WORKER, getattr(settings, "RQ", {})),
    }
    return [
        Error(f"{name} is not a dict.", hint=f"Write {name} = {example}.", id="tenant_slots.E018")
        for name, (example, value) in own.items()
        if not isinstance(value, Mapping)
    ]


def check_addresses(**_: Any) -> list[CheckMessage]:
    """E019, W007: values of RQ_QUEUES that lead to no Redis. Whether one is there is the doctor's to ask."""
    if check_rq_settings():
        return []
    hint = 'Write RQ_QUEUES = {"default": {"URL": "redis://…"}}, or "HOST", "PORT" and "DB" in place of "URL".'
    return [
        _without_url(error.queue)
        if _is_without_url(rq_queues()[error.queue])
        else Error(str(error), hint=hint, id="tenant_slots.E019")
        for error in queue_directory.unusable()
    ]


def _is_without_url(config: object) -> bool:
    return isinstance(config, Mapping) and config.get("URL", "redis://") in (None, "")


def _without_url(queue: str) -> Warning:
    """As where a variable of the environment is not set: a step that builds, or migrates, needs no Redis."""
    hint = "Set the variable that it is read from, wherever jobs are enqueued or run."
    return Warning(f'The "URL" of RQ_QUEUES[{queue!r}] is empty.', hint=hint, id="tenant_slots.W007")


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


BY_QUEUE = ("QUEUE_WEIGHTS", "DEFAULT_MAX_JOB", "DEFAULT_SHARE", "DEFAULT_RATE")


def check_values_by_queue(**_: Any) -> list[CheckMessage]:
    """E009: a weight that no worker can use, or a default that no tenant queue gets."""
    values = {name: getattr(app_settings, name) for name in BY_QUEUE}
    named = [
        (f'TENANT_SLOTS["{name}"] names queue', queue, None)
        for name, value in values.items()
        if isinstance(value, Mapping) and not RULES[name](value)
        for queue in value
    ]
    return _unknown_queues("tenant_slots.E009", named)


def check_admin_queue(**_: Any) -> list[CheckMessage]:
    """E015: where bulk changes of the admin would wait for ever."""
    name = app_settings.ADMIN_QUEUE
    if not name or RULES["ADMIN_QUEUE"](name):
        return []
    return _unknown_queues("tenant_slots.E015", [('TENANT_SLOTS["ADMIN_QUEUE"] names queue', name, None)])


def _unknown_queues(check_id: str, uses: Iterable[tuple[str, str, object]]) -> list[CheckMessage]:
    """An error for each use of a queue that RQ lacks; a use is what it says, the queue, and where it is written."""
    known = rq_queues()
    hint = f"Add it to RQ_QUEUES, or use one of: {', '.join(sorted(map(str, known))) or 'none so far'}."
    return [
        Error(f"{text} {shown(queue)}, which RQ_QUEUES does not have.", hint=hint, obj=where, id=check_id)
        for text, queue, where in uses
        if queue not in known
    ]


def check_worker_class(**_: Any) -> list[CheckMessage]:
    """E008, W002: limits hold with any worker class; slots of killed jobs come back at once only with ours."""
    rq = getattr(settings, "RQ", None)
    configured = rq.get("WORKER_CLASS") if isinstance(rq, Mapping) else None
    try:
        worker_class = import_string(configured) if isinstance(configured, str) else configured
    except NOT_IMPORTABLE as error:
        return [Error(f'RQ["WORKER_CLASS"] cannot be imported: {error}.', id="tenant_slots.E008")]
    if isinstance(worker_class, type) and issubclass(worker_class, BaseWorker) and _is_ours(worker_class):
        return []
    hint = f"Set RQ = {OWN_WORKER}."
    return [
        Warning("The slot of a killed job comes back late with this worker class.", hint=hint, id="tenant_slots.W002")
    ]


def check_schemas(**_: Any) -> list[CheckMessage]:
    """E010, W003: with django-tenants, where our tables are, and where jobs run."""
    return [*_tables_in_schemas(), *_jobs_in_public()]


def _tables_in_schemas() -> Iterator[CheckMessage]:
    """A job that is enqueued in a tenant's schema would be stored there, where no worker looks."""
    has_types = getattr(settings, "HAS_MULTI_TYPE_TENANTS", False)
    types = getattr(settings, "TENANT_TYPES", None) or {} if has_types else {}
    public = getattr(settings, "PUBLIC_SCHEMA_NAME", "public")
    by_setting = {"TENANT_APPS": getattr(settings, "TENANT_APPS", None) or ()}
    by_setting |= {f"TENANT_TYPES[{name!r}]": kind.get("APPS", ()) for name, kind in types.items() if name != public}
    for name, own in by_setting.items():
        if any(app.split(".")[0] == "tenant_slots" for app in own):
            hint = "Move it to SHARED_APPS; JOB_CONTEXT has jobs run in their tenant's schema."
            yield Error(f"tenant_slots is in {name}, so that its jobs vanish.", hint=hint, id="tenant_slots.E010")


def _jobs_in_public() -> Iterator[CheckMessage]:
    """The slots may be in another database than the tenants."""
    has_schemas = any(config.get("ENGINE", "").startswith("django_tenants.") for config in settings.DATABASES.values())
    contexts = app_settings.JOB_CONTEXT
    if has_schemas and not RULES["JOB_CONTEXT"](contexts) and not any(map(_may_set_schema, paths_in(contexts))):
        hint = f'Add "{SCHEMA_CONTEXT}" to TENANT_SLOTS["JOB_CONTEXT"], and set CAPTURE_CONTEXT.'
        yield Warning("Jobs run in the public schema of django-tenants.", hint=hint, id="tenant_slots.W003")


def _may_set_schema(path: str) -> bool:
    """What the project has written may; of what is ready made only one does."""
    return path == SCHEMA_CONTEXT or not path.startswith("tenant_slots.")


def check_foreign_tasks(**_: Any) -> list[CheckMessage]:
    """W006: Tasks of Django that take no slot although their function asks for one, among those imported so far."""
    if not use.is_used():
        return []
    from tenant_slots.django_tasks import foreign

    hint = f'Use "{use.BACKEND}" as the backend of this Task, or enqueue the function with its own .enqueue().'
    return [
        Warning(
            f"The Task {path} runs without a slot, and without its context: backend {alias!r} does not know the"
            " @tenant_job inside it.",
            hint=hint,
            obj=path,
            id="tenant_slots.W006",
        )
        for path, alias in foreign.without_slots()
    ]


def _is_ours(worker_class: type) -> bool:
    return any(base.__module__.startswith("tenant_slots.workers.") for base in worker_class.__mro__)
