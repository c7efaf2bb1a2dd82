"""The settings: ``TENANT_SLOTS`` in Django's settings, read at each use so that tests may override it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

from django.conf import settings

T = TypeVar("T")


class Setting(Generic[T]):
    """One key of ``TENANT_SLOTS`` with its default."""

    def __init__(self, default: T) -> None:
        self.default = default

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: object, owner: type) -> T:
        value: T = configured().get(self.name, self.default)
        return value


class AppSettings:
    """Times are in seconds."""

    DEFAULT_MAX_JOB: Setting[int | Mapping[str, int] | str] = Setting(1)
    DEFAULT_SHARE: Setting[int | Mapping[str, int] | str] = Setting(1)
    DEFAULT_RATE: Setting[Mapping[str, str | None] | str | None] = Setting(None)
    AUTO_CREATE = Setting(True)
    REQUIRE_TENANT = Setting(False)
    IMMEDIATE = Setting(False)
    DATABASE = Setting("default")
    RESCHEDULE_DELAY = Setting(60)
    BEAT_INTERVAL = Setting(5)
    LEASE_TTL = Setting(20)
    SWEEP_INTERVAL = Setting(5)
    MAX_CRASHES = Setting(3)
    JOBS_PER_HORSE = Setting(1000)
    HORSE_MAX_RSS: Setting[int | None] = Setting(None)
    MAX_INTERRUPTIONS = Setting(20)
    UNKNOWN_TASK_WAIT = Setting(600)
    ON_LOST_DATABASE = Setting("continue")
    MAX_ARGS_BYTES = Setting(65536)
    RETENTION = Setting(7 * 24 * 3600)
    CAPTURE_CONTEXT: Setting[Sequence[str] | str] = Setting(())
    JOB_CONTEXT: Setting[Sequence[str] | str] = Setting(())
    QUEUE_WEIGHTS: Setting[Mapping[str, float]] = Setting({})
    ADMIN_QUEUE = Setting("")
    PROJECT_VERSION = Setting("")
    MAY_VIEW_JOB = Setting("")
    MAY_VIEW_HEALTH = Setting("")
    MAY_VIEW_METRICS = Setting("")
    METRICS_TENANTS: Setting[int | Sequence[str]] = Setting(0)
    HIDDEN_ARGUMENTS: Setting[Sequence[str]] = Setting(("password", "token", "secret", "api_key", "authorization"))


def configured() -> Mapping[str, Any]:
    """What the project wrote, defaults not included. A system check reports what is not a dict."""
    value = getattr(settings, "TENANT_SLOTS", {})
    return value if isinstance(value, Mapping) else {}


def rq_queues() -> Mapping[str, Any]:
    """The project's ``RQ_QUEUES``. A system check reports what is not a dict."""
    value = getattr(settings, "RQ_QUEUES", {})
    return value if isinstance(value, Mapping) else {}


def known_names() -> set[str]:
    return {name for name, value in vars(AppSettings).items() if isinstance(value, Setting)}


app_settings = AppSettings()
