"""Why a job does not run yet, in sentences."""

from __future__ import annotations

from collections.abc import Iterable

from django.utils.translation import gettext, ngettext

from tenant_slots import dispatch
from tenant_slots.admin.words import duration, long_moment, rest, second
from tenant_slots.models import TenantJob, TenantQueue
from tenant_slots.stats import reasons
from tenant_slots.stats.reasons import Reason


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
    yield gettext("It is number %(position)d in the backlog of %(row)s.") % {
        "position": waits.position,
        "row": waits.row,
    }
    for reason in waits.reasons:
        match reason:
            case Reason.PAUSED:
                yield _paused(waits.row)
            case Reason.RESTS:
                text = gettext("A job has said that the tenant is busy. No job starts now. %(rest)s.")
                yield text % {"rest": rest(waits.row)}
            case Reason.LIMIT_OF_ZERO:
                yield gettext("The limit is 0: no job starts until it is raised.")
            case Reason.AT_LIMIT:
                yield from _at_limit(waits)
            case Reason.KEY_LIMIT:
                yield _at_key_limit(job, waits)
            case Reason.RATE:
                yield _rate_used_up(waits)
            case Reason.WORKER:
                yield from _waits_for_worker(waits)
            case Reason.JOBS_BEFORE_IT:
                yield gettext("It is a reservation: it gets the first free slot that no job before it could take.")
    yield _estimate(waits)


def _paused(row: TenantQueue) -> str:
    if row.resume_at is None:
        return gettext("The tenant queue is paused: no job starts until somebody resumes it.")
    return gettext("The tenant queue is paused until %(time)s.") % {"time": long_moment(row.resume_at)}


def _at_limit(waits: reasons.Waits) -> Iterable[str]:
    text = gettext("Its tenant queue is at its limit: %(held)d of %(limit)d slots are taken.")
    yield text % {"held": waits.row.current_job, "limit": waits.row.max_job}
    if waits.holding:
        names = [f"{job} ({job.worker})" if job.worker else str(job) for job in waits.holding]
        yield gettext("They are held by: %(jobs)s.") % {"jobs": ", ".join(names)}


def _at_key_limit(job: TenantJob, waits: reasons.Waits) -> str:
    text = gettext(
        "It is passed over until one of these ends: the limit per concurrency key is %(limit)s, and they hold "
        "slots with the same concurrency key, %(key)s: %(jobs)s."
    )
    names = ", ".join(map(str, waits.holding_its_key))
    return text % {"limit": waits.row.max_job_per_key, "key": job.key, "jobs": names}


def _rate_used_up(waits: reasons.Waits) -> str:
    text = gettext("The rate of %(rate)s is used up: the next job may start at %(time)s.")
    next_at = waits.bucket.next_at if waits.bucket else None
    return text % {"rate": waits.row.rate, "time": second(next_at or waits.seen_at)}


def _waits_for_worker(waits: reasons.Waits) -> Iterable[str]:
    text = gettext(
        "It waits for a free worker: its tenant queue is below its limit, %(held)d of %(limit)d slots are taken. "
        "Workers take the jobs of tenants in fair order."
    )
    yield text % {"held": waits.row.current_job, "limit": waits.row.max_job}
    yield _workers_of(waits.rq_queue)


def _workers_of(queue: str) -> str:
    workers = dispatch.workers_listening(queue)
    if workers is None:
        return gettext("Redis does not answer, so that nobody can say how many workers are alive.")
    if not workers:
        return gettext("No worker of queue %(queue)s is alive. Start one: manage.py rqworker %(queue)s.") % {
            "queue": queue
        }
    text = ngettext(
        "%(count)d worker of queue %(queue)s is alive.", "%(count)d workers of queue %(queue)s are alive.", workers
    )
    return text % {"count": workers, "queue": queue}


def _estimate(waits: reasons.Waits) -> str:
    if not waits.may_start:
        return gettext("Nobody can say when it starts.")
    if waits.pace is None or waits.seconds_to_start is None:
        return gettext("There is no estimate: no job of this tenant queue has ended in the last hour.")
    text = gettext(
        "It starts in about %(time)s. This is an estimate by the pace of its tenant queue: %(ended)d jobs ended in "
        "%(seconds)s with something to run, and %(position)d are to start, this one included."
    )
    return text % {
        "time": duration(waits.seconds_to_start),
        "ended": waits.pace.ended,
        "seconds": duration(waits.pace.seconds),
        "position": waits.position,
    }
