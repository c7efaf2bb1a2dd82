"""Settings of a measurement. The harness sets the environment variables and starts workers with these settings too."""

from __future__ import annotations

import os

import dj_database_url

from benchmarks import contexts
from benchmarks.admin_settings import ADMIN
from benchmarks.queues import WEIGHTS

SECRET_KEY = "only for benchmarks"  # noqa: S105
USE_TZ = True
ALLOWED_HOSTS: list[str] = []

INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "tenant_slots", "django_rq"]
if os.environ.get("BENCHMARK_PLAIN"):
    INSTALLED_APPS.remove("tenant_slots")

if os.environ.get("BENCHMARK_ADMIN"):
    globals().update(ADMIN)

CONTEXT = os.environ.get("BENCHMARK_CONTEXT", "")
contexts.switch_on(CONTEXT)

DATABASES = {"default": dj_database_url.parse(os.environ["DATABASE_URL"])}

RQ_QUEUES = {name: {"URL": os.environ["REDIS_URL"], "DEFAULT_TIMEOUT": 180} for name in ("bench", *WEIGHTS)}
TENANT_SLOTS = {"QUEUE_WEIGHTS": WEIGHTS, **contexts.SETTINGS[CONTEXT]}
RQ = {"WORKER_CLASS": os.environ["BENCHMARK_WORKER_CLASS"]} if os.environ.get("BENCHMARK_WORKER_CLASS") else {}
