"""What the list and the page of a job show beside its own fields."""

from __future__ import annotations

from django.contrib import admin
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from tenant_slots.admin import arguments, errors, job_chains, progress, reasons
from tenant_slots.models import TenantJob
from tenant_slots.stats import position_in_backlog


class JobFields:
    @admin.display(description=_("tenant"))
    def tenant(self, job: TenantJob) -> str:
        return job.tenant_queue.tenant or gettext("no tenant")

    @admin.display(description=_("queue"))
    def queue(self, job: TenantJob) -> str:
        own, overflow = job.tenant_queue.queue, job.rq_queue_name
        return own if own == overflow else f"{own} → {overflow}"

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

    @admin.display(description=_("position in the backlog"))
    def position(self, job: TenantJob) -> int | None:
        return position_in_backlog(job)

    @admin.display(description=_("why is this job waiting?"))
    def why_waiting(self, job: TenantJob) -> SafeString:
        sentences = reasons.why_waiting(job, job_chains.seen_of(job))
        return format_html_join(SafeString("<br>"), "{}", ((text,) for text in sentences))

    @admin.display(description=_("runs after"))
    def runs_after(self, job: TenantJob) -> SafeString:
        return job_chains.links(job, job_chains.RUNS_AFTER)

    @admin.display(description=_("jobs that run after it"))
    def dependents(self, job: TenantJob) -> SafeString:
        return job_chains.links(job, job_chains.DEPENDENTS)

    @admin.display(description=_("progress"))
    def reported(self, job: TenantJob) -> str:
        return progress.bar_and_first_statistics(job)

    @admin.display(description=_("progress"))
    def progress_bar(self, job: TenantJob) -> str:
        return progress.bar(job)

    @admin.display(description=_("statistics"))
    def statistics(self, job: TenantJob) -> str:
        return progress.statistics(job)

    @admin.display(description=_("arguments"))
    def arguments(self, job: TenantJob) -> SafeString:
        return format_html("<pre>{}</pre>", arguments.shown_args(job))

    @admin.display(description=_("keyword arguments"))
    def keyword_arguments(self, job: TenantJob) -> SafeString:
        return format_html("<pre>{}</pre>", arguments.shown_kwargs(job))

    @admin.display(description=_("context"))
    def shown_context(self, job: TenantJob) -> SafeString:
        return format_html("<pre>{}</pre>", arguments.shown_context(job))

    @admin.display(description=_("result"))
    def shown_result(self, job: TenantJob) -> SafeString:
        return format_html("<pre>{}</pre>", arguments.shown_result(job))

    @admin.display(description=_("class of the error"))
    def error_class(self, job: TenantJob) -> str:
        """For viewers who may not see arguments: a traceback and its message may hold some."""
        return errors.class_of(job) or (arguments.HIDDEN if job.error else "")
