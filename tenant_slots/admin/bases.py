"""Django's classes with their models, which a type checker wants to know and Python does not.

A concern is a part of a ModelAdmin. It has no base class of its own, so that a theme's ModelAdmin may come before ours
or after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin
from django.core.paginator import Paginator

from tenant_slots.models import TenantJob, TenantQueue

if TYPE_CHECKING:
    from django.contrib.admin.views.main import ChangeList

    AnyConcern = admin.ModelAdmin[Any]
    AnyChangeList = ChangeList
    QueueModelAdmin = admin.ModelAdmin[TenantQueue]
    QueueConcern = admin.ModelAdmin[TenantQueue]
    QueueModelForm = forms.ModelForm[TenantQueue]
    JobModelAdmin = admin.ModelAdmin[TenantJob]
    JobConcern = admin.ModelAdmin[TenantJob]
    JobPaginator = Paginator[Any]
else:
    QueueModelAdmin = JobModelAdmin = admin.ModelAdmin
    QueueConcern = JobConcern = AnyConcern = AnyChangeList = object
    QueueModelForm = forms.ModelForm
    JobPaginator = Paginator
