"""Who may see which tenants, and who may do what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import transaction
from django.db.models import Model, QuerySet
from django.http import HttpRequest

from tenant_slots.admin.bases import JobConcern, QueueConcern
from tenant_slots.conf import app_settings
from tenant_slots.db.transactions import bounded_at_once
from tenant_slots.models import TenantJob, TenantQueue


def may(request: HttpRequest, codename: str) -> bool:
    """Whether the viewer has a permission of this app."""
    allowed: bool = request.user.has_perm(f"tenant_slots.{codename}")
    return allowed


def may_see(model_admin: Any, request: HttpRequest, model: type[Model]) -> bool:
    """Whether the viewer may see objects of a model of this app. Who may change them may, as in Django's admin.

    Where the project's own ModelAdmin of that model says otherwise, on the site of this one, it is asked.
    """
    if model_admin.admin_site.is_registered(model):
        return bool(model_admin.admin_site.get_model_admin(model).has_view_permission(request))
    name = model._meta.model_name
    return may(request, f"view_{name}") or may(request, f"change_{name}")


def needs(codename: str) -> Callable[[Any, HttpRequest], bool]:
    """A method ``has_…_permission`` of a ModelAdmin that asks for this permission."""

    def has_permission(model_admin: Any, request: HttpRequest) -> bool:
        return may(request, codename)

    return has_permission


class Restricted:
    """Which tenants a viewer may see and change. Override the one method, in both admins, to restrict it."""

    def tenant_queues_for(self, request: HttpRequest) -> QuerySet[TenantQueue] | None:
        """The rows of this viewer; None means all of them, which costs no query."""
        return None

    def own_tenant_queues(self, request: HttpRequest) -> QuerySet[TenantQueue] | None:
        """The same, for queries to go on with: as one that counts and sorts nothing itself."""
        asked = self.tenant_queues_for(request)
        if asked is None or not _is_composed(asked.query):
            return asked
        own: QuerySet[TenantQueue] = TenantQueue.objects.using(asked.db).filter(pk__in=asked.values("pk"))
        return own

    def may_have(self, request: HttpRequest, tenant: str, queue: str) -> bool:
        """Whether a row that does not exist yet would be one of theirs. It is made for a moment, which nobody sees.

        Raises:
            TenantQueueLocked: somebody else has been about to add the same one for longer than our patience.
        """
        own = self.own_tenant_queues(request)
        if own is None:
            return True
        using = app_settings.DATABASE
        made = TenantQueue(tenant=tenant, queue=queue)
        with bounded_at_once(using, made), transaction.atomic(using):
            TenantQueue.objects.bulk_create([made], ignore_conflicts=True)  # with one that exists
            is_theirs = own.filter(tenant=tenant, queue=queue).exists()
            transaction.set_rollback(True, using)
        return is_theirs


def _is_composed(query: Any) -> bool:
    """A DISTINCT, a slice, a union or a GROUP BY: nothing can be added to it but around it. Or one that joins other
    tables, and may give a row several times.
    """
    is_closed = query.distinct or query.is_sliced or query.combinator or query.group_by is not None
    return bool(is_closed or len(query.alias_map) > 1)


class QueuePermissions(Restricted, QueueConcern):
    """Who may change a whole row may pause it, resume it and set its limit too."""

    has_cancel_waiting_permission = needs("cancel_waiting_tenantqueue")
    has_retry_failed_permission = needs("retry_tenantjob")
    has_export_permission = needs("export_tenantqueue")

    def has_pause_permission(self, request: HttpRequest) -> bool:
        return may(request, "pause_tenantqueue") or self.has_change_permission(request)

    def has_resume_permission(self, request: HttpRequest) -> bool:
        return may(request, "resume_tenantqueue") or self.has_change_permission(request)

    def has_set_limit_permission(self, request: HttpRequest, obj: TenantQueue | None = None) -> bool:
        return may(request, "set_limit_tenantqueue") or self.has_change_permission(request, obj)


class JobPermissions(Restricted, JobConcern):
    """No field of a job can be changed by hand; the change permission lets one cancel it while it does not run."""

    has_view_arguments_permission = needs("view_job_arguments")
    has_stop_permission = needs("stop_tenantjob")
    has_retry_permission = needs("retry_tenantjob")
    has_prioritize_permission = needs("prioritize_tenantjob")
    has_force_release_permission = needs("force_release_tenantjob")
    has_export_permission = needs("export_tenantjob")

    def has_release_permission(self, request: HttpRequest) -> bool:
        return may(request, "release_tenantjob") or self.has_force_release_permission(request)

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        return super().has_change_permission(request)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: TenantJob | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: TenantJob | None = None) -> bool:
        return False
