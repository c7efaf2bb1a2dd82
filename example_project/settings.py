"""Settings of the example shop. A few environment variables change them; none is needed to look around.

=================  ==========================================================================
``DATABASE_URL``   such as ``postgres://user@host/name``; else an SQLite file in ``var/``
``REDIS_URL``      Redis or Valkey; else ``redis://127.0.0.1:6379/0``
``PARTNER_URL``    where changed products are sent, with ``PARTNER_TOKEN``; else this project
``MEDIA_ROOT``     where uploaded feeds are kept; else ``var/media``
``SECRET_KEY``     needed in production, with ``DEBUG=0`` and ``ALLOWED_HOSTS=a,b``
=================  ==========================================================================
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from django.core.exceptions import ImproperlyConfigured

ROOT = Path(__file__).resolve().parent.parent
VAR = ROOT / "var"

DEBUG = os.environ.get("DEBUG", "1") == "1"
SECRET_KEY = os.environ.get("SECRET_KEY", "only for trying out" if DEBUG else "")
ALLOWED_HOSTS = os.environ.get("ALLOWED_HOSTS", "127.0.0.1,localhost,[::1]").split(",")

ROOT_URLCONF = "example_project.urls"
WSGI_APPLICATION = "example_project.wsgi.application"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "tenant_slots",
    "django_rq",
    "example_project.catalogue",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "example_project.catalogue.middleware.content_security_policy",
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

STATIC_URL = "/static/"
MEDIA_ROOT = os.environ.get("MEDIA_ROOT", str(VAR / "media"))
LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "catalogue:home"
LOGOUT_REDIRECT_URL = "login"


def database() -> dict[str, Any]:
    url = os.environ.get("DATABASE_URL")
    if not url:
        VAR.mkdir(exist_ok=True)  # SQLite makes the file, not its directory
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": VAR / "shop.sqlite3", "OPTIONS": SQLITE_OPTIONS}
    try:
        import dj_database_url
    except ImportError as error:
        raise ImproperlyConfigured('DATABASE_URL needs dj-database-url: pip install -e ".[demo]"') from error
    config: dict[str, Any] = dict(dj_database_url.parse(url))
    if config["ENGINE"].endswith("sqlite3"):
        config["OPTIONS"] = SQLITE_OPTIONS
    return config


# Several workers write to one file: a transaction takes the write lock at its start, and waits for it.
SQLITE_OPTIONS = {
    "transaction_mode": "IMMEDIATE",
    "timeout": 30,
    "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
}
DATABASES = {"default": database()}

REDIS_URL = os.environ.get("REDIS_URL") or "redis://127.0.0.1:6379/0"
RQ_QUEUES = {name: {"URL": REDIS_URL, "DEFAULT_TIMEOUT": 300} for name in ("default", "imports")}
RQ = {"WORKER_CLASS": "tenant_slots.workers.TenantPreforkWorker"}

TENANT_SLOTS = {
    "DEFAULT_MAX_JOB": {"imports": 2},
    "MAY_VIEW_JOB": "example_project.catalogue.job_status.may_view",
}

PARTNER_URL = os.environ.get("PARTNER_URL", "http://127.0.0.1:8000/partner/")
# The partner is this project too, so both sides can derive the token.
PARTNER_TOKEN = os.environ.get("PARTNER_TOKEN") or hashlib.sha256(f"partner:{SECRET_KEY}".encode()).hexdigest()
PARTNER_TIMEOUT = 10
