"""Receivers of signals: the log, and for the deletion of a tenant queue, which is refused while it is in use."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from django.apps import apps
from django.db.models import Model
from django.db.models.signals import class_prepared, post_delete, pre_delete

from tenant_slots import logs, signals, transitions
from tenant_slots.conf import app_settings
from tenant_slots.db import transactions
from tenant_slots.db.commits import after_commit
from tenant_slots.enqueueing.queue_deletion import Unused
from tenant_slots.exceptions import TenantQueueInUse
from tenant_slots.models import Change, JobDependency, State, TenantJob, TenantQueue
from tenant_slots.tasks import attempts

logger = logging.getLogger("tenant_slots")


def connect_all() -> None:
    for model in apps.get_models():
        watch_deletions(model)
    class_prepared.connect(watch_deletions)
    signals.connect_ours("jobs_enqueued", log_enqueued)
    signals.connect_ours("jobs_admitted", log_admitted)
    signals.connect_ours("job_started", log_started)
    signals.connect_ours("job_ended", log_ended)
    signals.connect_ours("job_put_back", log_put_back)
    signals.connect_ours("limit_changed", log_limit_changed)


def watch_deletions(sender: type[Model], **_: Any) -> None:
    """Of tenant queues, also by way of a proxy of the project: Django tells of that under the proxy's name alone."""
    if sender._meta.concrete_model is TenantQueue:
        pre_delete.connect(refuse_to_delete_in_use, sender=sender)
        pre_delete.connect(forget_dependencies, sender=sender)
        post_delete.connect(forget_place_in_order, sender=sender)


def refuse_to_delete_in_use(*, instance: TenantQueue, origin: object = None, **_: Any) -> None:
    """Raises TenantQueueInUse while jobs hold its slots or wait for them.

    FOR UPDATE, unlike all other locks on this row: whoever has enqueued in a transaction keeps it until that has ended.
    An enqueue that comes later finds the row gone and makes it anew, instead of being deleted with it.

    Raises:
        TenantQueueLocked: such a transaction does not end.
    """
    if isinstance(origin, Unused):
        return
    with transactions.bounded_at_once(app_settings.DATABASE, instance):
        list(TenantQueue.objects.select_for_update().filter(pk=instance.pk))
    holding = instance.jobs.holding().count()
    waiting = instance.jobs.unadmitted().count()
    if holding or waiting:
        raise TenantQueueInUse(tenant_queue=instance, holding=holding, waiting=waiting)


def forget_dependencies(*, instance: TenantQueue, origin: object = None, **_: Any) -> None:
    """For which others its jobs waited; these have ended."""
    if not isinstance(origin, Unused):
        JobDependency.objects.filter(job__tenant_queue=instance.pk).delete()


def forget_place_in_order(*, instance: TenantQueue, **_: Any) -> None:
    after_commit(partial(transitions.deleted, instance.pk, instance.queue))


def log_enqueued(*, jobs: list[TenantJob], **_: Any) -> None:
    for job in jobs if logger.isEnabledFor(logging.DEBUG) else ():
        logger.debug("enqueued %s for %r", job, job.tenant_queue.tenant, extra=logs.about(job))


def log_admitted(*, jobs: list[TenantJob], **_: Any) -> None:
    for job in jobs if logger.isEnabledFor(logging.DEBUG) else ():
        logger.debug("admitted %s for %r", job, job.tenant_queue.tenant, extra=logs.about(job))


def log_started(*, job: TenantJob, **_: Any) -> None:
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug("started %s for %r", job, job.tenant_queue.tenant, extra=logs.about(job))


def log_ended(*, job: TenantJob, **_: Any) -> None:
    level = logging.WARNING if job.state == State.FAILED else logging.DEBUG
    if logger.isEnabledFor(level):
        logger.log(level, "%s %s for %r", job.state, job, job.tenant_queue.tenant, extra=logs.about(job))


def log_limit_changed(*, tenant_queue: TenantQueue, change: Change, **_: Any) -> None:
    logger.info(
        "%s of %r on %s: %s → %s by %r%s",
        change.what,
        tenant_queue.tenant,
        tenant_queue.queue,
        change.old,
        change.new,
        change.by,
        f": {change.reason!r}" if change.reason else "",
        extra=logs.about_named(tenant=tenant_queue.tenant, queue=tenant_queue.queue),
    )


def log_put_back(*, job: TenantJob, reason: str, **_: Any) -> None:
    """Of an error its class alone: the text may quote what the job was called with, or a row that was refused."""
    why = attempts.raised(job) or reason.strip().rpartition("\n")[2]
    logger.warning("%s goes back to %s: %s", job, job.state, why, extra=logs.about(job))
