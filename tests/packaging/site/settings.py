"""A project that has nothing but what the wheel brings along."""

import os

SECRET_KEY = "packaging"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "shop",
    "tenant_slots",
    "django_rq",
]
MIDDLEWARE = [
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
            ],
        },
    },
]
DATABASES = {
    "default": {"ENGINE": "django.db.backends.postgresql", "NAME": os.environ["PGDATABASE"]}
    if "PGDATABASE" in os.environ
    else {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": "site.sqlite3",
        "OPTIONS": {"transaction_mode": "IMMEDIATE"},
    }
}
RQ_QUEUES = {"imports": {"URL": os.environ["REDIS_URL"]}}
RQ = {"WORKER_CLASS": "tenant_slots.workers.TenantPreforkWorker"}
