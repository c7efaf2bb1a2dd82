"""The admins of tenant_slots, registered again with the theme's own ModelAdmin, which may come first or second."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.db import models

from tenant_slots.admin import TenantJobAdmin, TenantQueueAdmin
from tenant_slots.models import TenantJob, TenantQueue


class ThemeInput(forms.TextInput):
    def __init__(self, attrs: Any = None) -> None:
        super().__init__({"class": "theme-input", **(attrs or {})})


class ThemeModelAdmin(admin.ModelAdmin):
    """Replaces the widgets of model fields, as themes do."""

    formfield_overrides = {models.IntegerField: {"widget": ThemeInput}, models.TextField: {"widget": ThemeInput}}


class QueuesFirst(TenantQueueAdmin, ThemeModelAdmin): ...


class JobsFirst(TenantJobAdmin, ThemeModelAdmin): ...


class QueuesSecond(ThemeModelAdmin, TenantQueueAdmin): ...


class JobsSecond(ThemeModelAdmin, TenantJobAdmin): ...


def site_of(name: str, queues: type[TenantQueueAdmin], jobs: type[TenantJobAdmin]) -> admin.AdminSite:
    site = admin.AdminSite(name)
    site.register(TenantQueue, queues)
    site.register(TenantJob, jobs)
    return site


ours_first = site_of("ours_first", QueuesFirst, JobsFirst)
theirs_first = site_of("theirs_first", QueuesSecond, JobsSecond)
