"""Settings of the test run; worker processes that tests start use them too."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec

import dj_database_url
import django

from tests import servers

servers.ensure()

SECRET_KEY = "only for tests"
USE_TZ = True
TIME_ZONE = "Asia/Dubai"
"""Other than UTC and the zones that jobs leave, and no clock is changed there: tests type local times into forms. What
a changed clock does is tested in zones that have it, on days that are named."""
ROOT_URLCONF = "tests.urls"
ALLOWED_HOSTS = ["*"]
STATIC_URL = "/static/"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "tenant_slots",
    "django_rq",
    "tests",
    "tests.reports_app",
]
if django.VERSION < (6, 0) and find_spec("django_tasks"):
    INSTALLED_APPS.append("django_tasks")  # the backport of Django's Tasks
MIDDLEWARE = [
    "tests.csp.ContentSecurityPolicy",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

DATABASES = {"default": dj_database_url.parse(os.environ["DATABASE_URL"])}
if DATABASES["default"]["ENGINE"].endswith("sqlite3"):
    DATABASES["default"]["OPTIONS"] = {
        "transaction_mode": "IMMEDIATE",
        "timeout": 30,
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
    }
    # A file, because worker processes must see what a test writes.
    DATABASES["default"]["TEST"] = {"NAME": f"{DATABASES['default']['NAME']}.test"}
if "TEST_DATABASE_POOL" in os.environ:
    DATABASES["default"].setdefault("OPTIONS", {})["pool"] = json.loads(os.environ["TEST_DATABASE_POOL"])

DATABASES["default"]["CONN_MAX_AGE"] = int(os.environ.get("TEST_CONN_MAX_AGE", "0"))

REDIS: dict[str, object] = {"URL": os.environ["REDIS_URL"]}
if "TEST_REDIS_PORT" in os.environ:  # as in django-rq's README, and with other defaults of redis-py
    REDIS = {"HOST": "127.0.0.1", "PORT": int(os.environ["TEST_REDIS_PORT"]), "DB": 0}
RQ_QUEUES = {
    name: {**REDIS, "DEFAULT_TIMEOUT": 180}
    for name in ("default", "imports", "imports_bulk", "imports_throttled", "imports_slow", "reports")
}


def read_later() -> dict[str, object]:
    """The settings that nobody reads before Django is set up, by name."""
    worker_class = os.environ.get("TEST_WORKER_CLASS", "tenant_slots.workers.TenantWorker")
    later: dict[str, object] = {"RQ": {"WORKER_CLASS": worker_class} if worker_class else {}}
    if "TEST_TENANT_SLOTS" in os.environ:
        later["TENANT_SLOTS"] = json.loads(os.environ["TEST_TENANT_SLOTS"])
    return later


globals().update(read_later())
RQ_EXCEPTION_HANDLERS = os.environ.get("TEST_EXCEPTION_HANDLERS", "").split()

TASKS = {
    "default": {
        "BACKEND": "tenant_slots.tasks_backend.TenantSlotsBackend",
        "QUEUES": ["default", "imports", "reports"],
        "OPTIONS": {"TENANT": "tenant_id"},
    },
}
