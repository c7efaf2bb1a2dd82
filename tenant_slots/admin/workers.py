"""The page of the workers: who is alive, what each one does, and which queue has nobody."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.template.response import TemplateResponse
from django.urls import path
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from tenant_slots import dispatch, fleet
from tenant_slots.admin.pages import address, page_of, view_name
from tenant_slots.admin.permissions import QueuePermissions, may_see
from tenant_slots.admin.words import told_to_rest
from tenant_slots.fleet import Fleet, Member
from tenant_slots.models import Stage, TenantJob, TenantQueue
from tenant_slots.queue_names import usable_queues
from tenant_slots.stats import lanes
from tenant_slots.stats.expressions import UNLISTED
from tenant_slots.validation import storable

MOST_SHOWN = 500
"""Workers on the page, those first that need somebody."""

STATES = {"started": _("starts"), "idle": _("idle"), "busy": _("busy"), "suspended": _("suspended")}
"""RQ's words."""


@dataclass(frozen=True)
class Lane:
    """A queue of RQ and its workers."""

    name: str
    alive: int
    busy: int
    leaving: int
    has_jobs: bool
    is_deserted: bool
    """It has jobs, plain ones among them, and nobody takes them; as far as the viewer may see whose they are."""


@dataclass(frozen=True)
class Shown:
    """A worker and the job of ours that it runs, if the viewer may see it."""

    member: Member
    job: TenantJob | None
    plain_id: str
    """Of any other job that it runs, which may be of any tenant; "" for a viewer who sees some of them only."""

    @property
    def state(self) -> str:
        if not self.member.is_alive:
            return gettext("dead")
        if self.member.is_leaving:
            return gettext("ends after its job")
        return str(STATES.get(self.member.state, self.member.state))

    @property
    def short_class(self) -> str:
        return self.member.worker_class.rpartition(".")[2] or gettext("not ours")


def deserted(known: Fleet, own: QuerySet[TenantQueue] | None = None) -> tuple[str, ...]:
    """Queues with jobs and without a worker that takes them, as far as Redis can be asked.

    Args:
        own: the tenant queues that the viewer may see; None for all.
    """
    return tuple(_left_alone(known, lanes.with_jobs(own), own))


def unasked(known: Fleet) -> tuple[str, ...]:
    """Queues whose Redis does not answer, as a page can show them: the settings may have any name."""
    return tuple(storable(str(name)) for name in known.unasked)


def _left_alone(known: Fleet, with_jobs: list[str], own: QuerySet[TenantQueue] | None) -> list[str]:
    """Plain jobs may be of any tenant, so that they count for those only who may see all."""
    if own is None:
        return fleet.without_worker(known, with_jobs)
    return [name for name in with_jobs if known.is_without_worker(name)]


def _lanes(known: Fleet, own: QuerySet[TenantQueue] | None) -> list[Lane]:
    with_jobs = lanes.with_jobs(own)
    left_alone = _left_alone(known, with_jobs, own)
    found = []
    for name in usable_queues():
        alive = [member for member in known.of(name) if member.is_alive]
        busy, leaving = sum(member.is_busy for member in alive), sum(not member.takes_jobs for member in alive)
        found.append(Lane(name, len(alive), busy, leaving, name in {*with_jobs, *left_alone}, name in left_alone))
    return found


def _plain_id(member: Member) -> str:
    return "" if dispatch.named_by(member.rq_job_id) else member.rq_job_id


class WorkersPage(QueuePermissions):
    def get_urls(self) -> list[Any]:
        page = path("workers/", self.admin_site.admin_view(self.workers_view), name=view_name(self, "workers"))
        return [page, *super().get_urls()]

    def workers_view(self, request: HttpRequest) -> TemplateResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        known = fleet.known()
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": gettext("Workers"),
            "media": self.media,
            "back": address(self, "changelist"),
            "lanes": _lanes(known, self.own_tenant_queues(request)),
            "unasked": unasked(known),
            "suspended": told_to_rest(known.suspended),
            "workers": self._shown(request, known),
            "more": max(0, len(known.members) - MOST_SHOWN),
            "slots_job_url": page_of(self, request, TenantJob, "change"),
        }
        return TemplateResponse(request, "admin/tenant_slots/workers.html", context)

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> Any:
        return super().changelist_view(
            request, {"slots_workers_url": address(self, "workers"), **(extra_context or {})}
        )

    def _shown(self, request: HttpRequest, known: Fleet) -> list[Shown]:
        members = sorted(known.members, key=lambda member: (member.takes_jobs, member.name))[:MOST_SHOWN]
        jobs = self._jobs_of(request, members)
        sees_all = self.own_tenant_queues(request) is None
        return [Shown(member, jobs.get(member.rq_job_id), _plain_id(member) if sees_all else "") for member in members]

    def _jobs_of(self, request: HttpRequest, members: list[Member]) -> dict[str, TenantJob]:
        """What they run, by RQ's id, as far as it is of a tenant that the viewer may see. Two queries at most: one of
        our own ids, and one of those of plain RQ, where jobs of ours may have come through it.
        """
        ids = [member.rq_job_id for member in members if member.rq_job_id]
        named = {rq_id: named[0] for rq_id in ids if (named := dispatch.named_by(rq_id))}
        plain = [rq_id for rq_id in ids if rq_id not in named]
        if not may_see(self, request, TenantJob):
            return {}
        not_ended = self._theirs(request).exclude(Q(stage=Stage.ENDED) | Q(rq_job_id=""))  # as the index of these ids
        jobs = [
            *(self._theirs(request).filter(uuid__in=named.values()) if named else ()),
            *(not_ended.filter(rq_job_id__in=plain) if plain else ()),
        ]
        return {job.last_rq_id: job for job in jobs}

    def _theirs(self, request: HttpRequest) -> QuerySet[TenantJob]:
        """The jobs that the viewer may see."""
        jobs = TenantJob.objects.select_related("tenant_queue").defer(*UNLISTED)
        own = self.own_tenant_queues(request)
        return jobs if own is None else jobs.filter(tenant_queue__in=own.order_by().values("pk"))
