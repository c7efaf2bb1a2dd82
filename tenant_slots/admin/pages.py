"""Addresses of our pages, on whichever admin site they are, and the page that asks before something is done."""

from __future__ import annotations

from typing import Any

from django import forms
from django.db.models import Model
from django.http import HttpRequest
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, reverse

from tenant_slots.admin.permissions import may_see


def view_name(model_admin: Any, page: str) -> str:
    return f"{model_admin.opts.app_label}_{model_admin.opts.model_name}_{page}"


def address(model_admin: Any, page: str, *args: Any) -> str:
    return reverse(f"{model_admin.admin_site.name}:{view_name(model_admin, page)}", args=args)


def address_of(model_admin: Any, request: HttpRequest, model: type[Model], page: str, *args: Any) -> str:
    """Of a page of another model of ours: "" for who may not see it, and where this admin site has no such page."""
    name = page_of(model_admin, request, model, page)
    try:
        return reverse(name, args=args) if name else ""
    except NoReverseMatch:  # a ModelAdmin of the project has it
        return ""


def page_of(model_admin: Any, request: HttpRequest, model: type[Model], page: str) -> str:
    """The name that its address is looked up by, "" as of `address_of`."""
    site, opts = model_admin.admin_site, model._meta
    if not (site.is_registered(model) and may_see(model_admin, request, model)):
        return ""
    return f"{site.name}:{opts.app_label}_{opts.model_name}_{page}"


def confirmation(
    model_admin: Any,
    request: HttpRequest,
    *,
    title: Any,
    effects: list[str],
    objects: list[Any],
    form: forms.Form,
    status: int = 200,
    **more: Any,
) -> TemplateResponse:
    """What will happen, to which objects, and the form that makes it happen."""
    context = {
        **model_admin.admin_site.each_context(request),
        "opts": model_admin.opts,
        "title": title,
        "effects": effects,
        "objects": objects,
        "form": form,
        "media": model_admin.media,
        "back": address(model_admin, "changelist"),
        **more,
    }
    return TemplateResponse(request, "admin/tenant_slots/confirm.html", context, status=status)
