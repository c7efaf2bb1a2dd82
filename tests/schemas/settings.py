"""A project on django-tenants, as its documentation sets one up, with the contexts that ours asks for."""

from __future__ import annotations

import json
import os

import dj_database_url

SECRET_KEY = "only for tests"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

OF_ADMIN = ["django.contrib.auth", "django.contrib.sessions", "django.contrib.messages", "django.contrib.admin"]
SHARED_APPS = [
    "django_tenants",
    "tests.schemas.customers",
    "django.contrib.contenttypes",
    *OF_ADMIN,
    "tenant_slots",
    "django_rq",
    # Its tables are in the public schema too, so that a job that strays there finds something to write to.
    "tests.schemas.feeds",
]
TENANT_APPS = ["django.contrib.contenttypes", *OF_ADMIN, "tests.schemas.feeds"]
INSTALLED_APPS = [*SHARED_APPS, *(app for app in TENANT_APPS if app not in SHARED_APPS)]
MIDDLEWARE = [
    "django_tenants.middleware.main.TenantMainMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
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
ROOT_URLCONF = "tests.schemas.urls"
ALLOWED_HOSTS = ["*"]
STATIC_URL = "/static/"
TENANT_MODEL = "customers.Customer"
TENANT_DOMAIN_MODEL = "customers.Domain"
TENANT_LIMIT_SET_CALLS = "TEST_LIMIT_SET_CALLS" in os.environ

DATABASES = {"default": {**dj_database_url.parse(os.environ["DATABASE_URL"])}}
DATABASES["default"]["ENGINE"] = "django_tenants.postgresql_backend"
DATABASE_ROUTERS = ["django_tenants.routers.TenantSyncRouter"]

RQ_QUEUES = {"imports": {"URL": os.environ["REDIS_URL"], "DEFAULT_TIMEOUT": 60}}
RQ = {"WORKER_CLASS": os.environ.get("TEST_WORKER_CLASS", "tenant_slots.workers.TenantPreforkWorker")}
TENANT_SLOTS = json.loads(
    os.environ.get("TEST_TENANT_SLOTS")
    or json.dumps(
        {
            "CAPTURE_CONTEXT": "tenant_slots.contrib.schemas.capture",
            "JOB_CONTEXT": "tenant_slots.contrib.schemas.job_context",
        }
    )
)
