"""Why a job does not run yet, in sentences."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.utils.translation import gettext, ngettext

from tenant_slots import dispatch
from tenant_slots.admin.words import duration, long_moment, rest, second
from tenant_slots.models import TenantJob, TenantQueue
from tenant_slots.stats import reasons


def why_waiting(job: TenantJob) -> list[str]:
    """None when it runs or has ended."""
    match reasons.why_waiting(job):
        case reasons.NotYet(until):
            text = gettext(
                "It is scheduled for %(time)s: because that was asked for, because it is to be retried, or because it "
                "was deferred."
            )
            return [text % {"time": long_moment(until)}]
        case reasons.NeedsWorker(queue):
            return [_needs_worker(queue)]
        case reasons.Waits() as waits:
            return [*_waits(job, waits)]
    return []


def _needs_worker(queue: str) -> str:
    workers = dispatch.workers_listening(queue)
    if workers is None:
        return gettext("It has a slot, but Redis does not answer; once it does, the sweep hands the job to a worker.")
    if not workers:
        text = gettext(
            "It has a slot, but no worker of queue %(queue)s is alive. Start one: manage.py rqworker %(queue)s."
        )
        return text % {"queue": queue}
    text = ngettext(
        "It has a slot and waits for a free worker; %(count)d is alive.",
        "It has a slot and waits for a free worker; %(count)d are alive.",
        workers,
    )
    return text % {"count": workers}


def _waits(job: TenantJob, waits: reasons.Waits) -> Iterable[str]:
    row = waits.row
    yield gettext("It is number %(position)d in the backlog of %(row)s.") % {"position": waits.position, "row": row}
    yield from _what_is_ahead(row, waits.holding)
    if waits.holding_its_key:
        text = gettext(
            "It is passed over until one of these ends: the limit per concurrency key is %(limit)s, and they hold "
            "slots with the same concurrency key, %(key)s: %(jobs)s."
        )
        names = ", ".join(map(str, waits.holding_its_key))
        yield text % {"limit": row.max_job_per_key, "key": job.key, "jobs": names}
    if waits.rests:
        text = gettext("A job has said that the tenant is busy. No job starts now. %(rest)s.")
        yield text % {"rest": rest(row)}
    if waits.next_token_at is not None:
        text = gettext("The rate of %(rate)s is used up: the next job may start at %(time)s.")
        yield text % {"rate": row.rate, "time": second(waits.next_token_at)}
    yield _estimate(waits)


def _what_is_ahead(row: TenantQueue, holding: list[TenantJob]) -> Iterable[str]:
    if row.paused and row.resume_at is not None:
        yield gettext("The tenant queue is paused until %(time)s.") % {"time": long_moment(row.resume_at)}
    elif row.paused:
        yield gettext("The tenant queue is paused: no job starts until somebody resumes it.")
    elif not row.max_job:
        yield gettext("The limit is 0: no job starts until it is raised.")
    else:
        yield gettext("%(used)d of %(limit)d slots are in use.") % {"used": row.current_job, "limit": row.max_job}
        if holding:
            names = [f"{job} ({job.worker})" if job.worker else str(job) for job in holding]
            yield gettext("They are held by: %(jobs)s.") % {"jobs": ", ".join(names)}
        yield gettext("It starts when those before it have started and a slot is free.")


def _estimate(waits: reasons.Waits) -> str:
    if waits.started_lately is None:
        return gettext("Nobody can say when it starts.")
    if waits.seconds_to_start is None:
        return gettext("There is no estimate: no job of this tenant queue has started in the last 15 minutes.")
    facts: dict[str, Any] = {
        "time": duration(waits.seconds_to_start),
        "started": waits.started_lately,
        "position": waits.position,
    }
    return (
        gettext(
            "It starts in about %(time)s. This is an estimate: %(started)d jobs started in the last 15 minutes, "
            "and %(position)d are to start, this one included."
        )
        % facts
    )
