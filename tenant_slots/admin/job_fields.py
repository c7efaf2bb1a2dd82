"""What the list and the page of a job show beside its own fields."""

from __future__ import annotations

from django.contrib import admin
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from tenant_slots.admin import arguments, words
from tenant_slots.admin.words import moment
from tenant_slots.models import TenantJob


class JobFields:
    @admin.display(description=_("tenant"))
    def tenant(self, job: TenantJob) -> str:
        return words.tenant(job.tenant_queue)

    @admin.display(description=_("queue"))
    def queue(self, job: TenantJob) -> str:
        own, overflow = job.tenant_queue.queue, job.rq_queue_name
        return own if own == overflow else f"{own} → {overflow}"

    @admin.display(description=_("enqueued"))
    def enqueued(self, job: TenantJob) -> str:
        return moment(job.enqueued_at)

    @admin.display(description=_("object"), empty_value="")
    def target(self, job: TenantJob) -> str:
        return f"{job.object_model} {job.object_pk}".strip()

    @admin.display(description=_("task"))
    def what(self, job: TenantJob) -> SafeString:
        """The task, which may break after its dots, and the object of a method."""
        task = format_html_join(SafeString(".<wbr>"), "{}", ((part,) for part in job.task.split(".")))
        return format_html("{}<br>{}", task, target) if (target := self.target(job)) else task

    @admin.display(description=_("tenant"))
    def for_whom(self, job: TenantJob) -> str:
        return format_html("{}<br>{}", self.tenant(job), job.key) if job.key else self.tenant(job)

    @admin.display(description=_("arguments"))
    def arguments(self, job: TenantJob) -> SafeString:
        return format_html("<pre>{}</pre>", arguments.shown_args(job))

    @admin.display(description=_("keyword arguments"))
    def keyword_arguments(self, job: TenantJob) -> SafeString:
        return format_html("<pre>{}</pre>", arguments.shown_kwargs(job))

    @admin.display(description=_("context"))
    def shown_context(self, job: TenantJob) -> SafeString:
        return format_html("<pre>{}</pre>", arguments.shown_context(job))
