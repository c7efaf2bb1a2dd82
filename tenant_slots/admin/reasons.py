"""Why a job does not run yet, in sentences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from django.db.models import QuerySet
from django.utils.translation import gettext, ngettext

from tenant_slots import fleet
from tenant_slots.admin.words import between, duration, long_moment, rest, second, told_to_rest
from tenant_slots.conf import rq_queues
from tenant_slots.fleet import Member
from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.stats import reasons, sweeps
from tenant_slots.stats.dependencies import Named
from tenant_slots.stats.reasons import Because, Reason
from tenant_slots.stats.sweeps import Look


def why_waiting(
    job: TenantJob,
    seen: QuerySet[TenantJob] | None = None,
    most_named: int = reasons.MOST_NAMED,
    look: Look | None = None,
) -> list[str]:
    """Nothing when it runs or has ended. See `reasons.why_waiting`; `look` is that of `sweeps`, if it was read."""
    because = reasons.why_waiting(job, seen, most_named, look and look.now)
    return [*dict.fromkeys(_sentences(job, because)), *_nobody_sweeps(look)] if because else []


def _sentences(job: TenantJob, because: object) -> list[str]:
    match because:
        case reasons.Expired(at):
            text = gettext("It was to begin before %(time)s: the next sweep cancels it, or the worker that takes it.")
            return [text % {"time": second(at)}]
        case reasons.AfterOthers() as after:
            return [*_after_others(after)]
        case reasons.NotYet() as not_yet:
            return [*_not_yet(not_yet)]
        case reasons.NeedsWorker() as needs:
            return [*_has_slot(job, needs)]
        case reasons.Waits() as waits:
            return [*_waits(job, waits)]
    return []


def _not_yet(not_yet: reasons.NotYet) -> Iterable[str]:
    because = {
        Because.ASKED: gettext("It is scheduled for %(time)s: whoever enqueued it asked for that."),
        Because.BUSY: gettext("It is put off until %(time)s: its tenant was busy."),
        Because.REFUSED: gettext("The database did not let it be admitted; it is tried again at %(time)s."),
        Because.RETRY: gettext("It ran, and is to run again at %(time)s."),
        Because.UNKNOWN_TASK: gettext(
            "A worker took it that does not know its function; it is tried again at %(time)s."
        ),
    }
    yield because[not_yet.because] % {"time": second(not_yet.until)}
    if not_yet.is_due:
        yield gettext("That time has come: the next sweep puts it into the backlog.")
    yield from _still_then(not_yet.held_back_by, not_yet.row)


def _still_then(held_back_by: Sequence[Reason], row: TenantQueue) -> Iterable[str]:
    """What will keep a job of this tenant queue when what it is scheduled for has come."""
    if held_back_by:
        yield gettext("It will still wait then, as long as this lasts.")
    for reason in held_back_by:
        yield _of_tenant_queue(reason, row)


def _has_slot(job: TenantJob, needs: reasons.NeedsWorker) -> Iterable[str]:
    yield _what_becomes_of_its_slot(job, is_taken_away=bool(needs.held_back_by))
    for reason in needs.held_back_by:
        yield _since_its_admission(job, reason, needs)
    if not job.is_reservation:
        yield from _workers_of(needs.queue)


def _what_becomes_of_its_slot(job: TenantJob, *, is_taken_away: bool) -> str:
    if job.is_reservation and is_taken_away:
        return gettext("It has a slot, but may not begin now: the process that waited for it gives it back, and waits.")
    if job.is_reservation:
        return gettext("It has a slot, which the process that waited for it takes up now.")
    if is_taken_away:
        return gettext("It has a slot, but may not start now: a worker that takes it puts it back into the backlog.")
    return gettext("It has a slot, and the next free worker takes it.")


def _since_its_admission(job: TenantJob, reason: Reason, needs: reasons.NeedsWorker) -> str:
    match reason:
        case Reason.KEY_LIMIT:
            text = gettext("Its concurrency key, %(key)s, is at its limit (slots taken: %(held)d of %(limit)d).")
            return text % {"key": job.key, "held": needs.slots_of_key, "limit": needs.row.max_job_per_key}
        case Reason.MORE_URGENT:
            return gettext("A job with a higher priority waits, and starts before it.")
    return _of_tenant_queue(reason, needs.row)


def _after_others(after: reasons.AfterOthers) -> Iterable[str]:
    yield _those_before_it(after.named)
    yield from _still_then(after.held_back_by, after.row)
    if not _is_taken(after.queue):
        yield from _workers_of(after.queue)  # these may run on other workers, and their end alone does not start it


def _those_before_it(named: Named) -> str:
    count = len(named.jobs) + named.others
    if not count:
        return gettext("The jobs that it runs after have ended: the next sweep tells it.")
    text = ngettext(
        "It runs after %(count)d job that has not ended yet.",
        "It runs after %(count)d jobs that have not ended yet.",
        count,
    )
    sentence = text % {"count": count}
    return f"{sentence} {', '.join(map(str, named.jobs))}".strip()


def _nobody_sweeps(look: Look | None) -> Iterable[str]:
    overdue = sweeps.seconds_overdue(look)
    if overdue is None:
        return
    if overdue:
        yield gettext("Nobody has swept for %(time)s.") % {"time": duration(overdue)}
    else:
        yield gettext("Nobody has ever swept.")
    yield gettext(
        "Until somebody does, nothing that is due comes into the backlog and no slot of a dead worker is freed: start "
        "a worker with a class of tenant_slots, or manage.py slots_sweep --loop."
    )


def _waits(job: TenantJob, waits: reasons.Waits) -> Iterable[str]:
    yield _position(job, waits)
    for reason in waits.reasons:
        match reason:
            case Reason.PAUSED | Reason.RESTS | Reason.LIMIT_OF_ZERO:
                yield _of_tenant_queue(reason, waits.row)
            case Reason.AT_LIMIT:
                yield from _at_limit(waits)
            case Reason.KEY_LIMIT:
                yield _at_key_limit(job, waits)
            case Reason.RATE:
                yield _rate_used_up(waits)
            case Reason.LOCKED:
                yield _locked(waits)
            case Reason.WORKER:
                yield from _waits_for_worker(waits)
            case Reason.JOBS_BEFORE_IT:
                yield gettext("It is a reservation: it gets the first free slot that no job before it could take.")
    yield from _stale(waits)
    yield from _gone(waits)
    is_taken = job.is_reservation or _is_taken(waits.rq_queue)
    if not is_taken and Reason.WORKER not in waits.reasons:
        yield from _workers_of(waits.rq_queue)  # whatever else it waits for: that alone does not start it
    yield _estimate(waits, is_taken=is_taken)


def _position(job: TenantJob, waits: reasons.Waits) -> str:
    values = {"position": waits.position, "row": waits.row, "queue": waits.rq_queue}
    if job.rq_queue:
        text = gettext("It is number %(position)d of the jobs for queue %(queue)s in the backlog of %(row)s.")
    else:
        text = gettext("It is number %(position)d in the backlog of %(row)s.")
    return text % values


def _of_tenant_queue(reason: Reason, row: TenantQueue) -> str:
    """What is no matter of this job."""
    match reason:
        case Reason.PAUSED:
            return _paused(row)
        case Reason.RESTS:
            text = gettext("A job has said that the tenant is busy. No job starts now. %(rest)s.")
            return text % {"rest": rest(row)}
        case Reason.LIMIT_OF_ZERO:
            return _limit_of_zero(row)
    text = gettext("Its tenant queue is at its limit (slots taken: %(held)d of %(limit)d).")
    return text % {"held": row.current_job, "limit": row.max_job}


def _paused(row: TenantQueue) -> str:
    if row.resume_at is None:
        return gettext("The tenant queue is paused: no job starts until somebody resumes it.")
    return gettext("The tenant queue is paused until %(time)s.") % {"time": long_moment(row.resume_at)}


def _limit_of_zero(row: TenantQueue) -> str:
    until = reasons.zero_until(row)
    if until is None:
        return gettext("The limit is 0: no job starts until it is raised.")
    text = gettext("The limit is 0 until %(time)s: no job starts before. After that it is %(limit)d.")
    return text % {"time": long_moment(until), "limit": row.limit_before_override}


def _at_limit(waits: reasons.Waits) -> Iterable[str]:
    yield _of_tenant_queue(Reason.AT_LIMIT, waits.row)
    if waits.holding:
        names = [f"{job} ({job.worker})" if job.worker and job.has_begun else str(job) for job in waits.holding]
        yield gettext("Held by: %(jobs)s.") % {"jobs": ", ".join(names)}
    if any(job.state == State.QUEUED and not job.is_reservation for job in waits.holding):
        yield gettext("Not all of these run: the next free workers take them.")
        yield from _workers_of(waits.rq_queue)


def _stale(waits: reasons.Waits) -> Iterable[str]:
    text = gettext("%(job)s has sent no heartbeat since %(time)s: a sweep frees its slot.")
    for job in waits.stale:
        if job.beat_at:
            yield text % {"job": job, "time": second(job.beat_at)}


def _gone(waits: reasons.Waits) -> Iterable[str]:
    """Of those that a stock worker started, which sends no heartbeats for a job."""
    silent = [job for job in {*waits.holding, *waits.holding_its_key} if job.worker and job.has_begun and not job.beats]
    known = fleet.known(waits.rq_queue) if silent else None
    if known is None or known.unasked:
        return
    names = {member.name for member in known.members}
    text = gettext("%(job)s was started by %(worker)s, which RQ does not know any more: a sweep frees its slot.")
    for job in silent:
        if job.worker not in names:
            yield text % {"job": job, "worker": job.worker}


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


def _locked(waits: reasons.Waits) -> str:
    text = gettext(
        "Another transaction keeps its tenant queue locked, which began %(time)s ago in PostgreSQL's process "
        "%(process)d: no job starts until it ends."
    )
    lock = waits.lock
    return text % {"time": duration(lock.seconds), "process": lock.process} if lock else ""


def _waits_for_worker(waits: reasons.Waits) -> Iterable[str]:
    text = gettext(
        "It waits for a free worker: its tenant queue is below its limit (slots taken: %(held)d of %(limit)d). "
        "Workers take the jobs of tenants in fair order; its share is %(share)d."
    )
    yield text % {"held": waits.row.current_job, "limit": waits.row.max_job, "share": waits.row.share}
    yield from _workers_of(waits.rq_queue)


def _workers_of(queue: str) -> Iterable[str]:
    if queue not in rq_queues():
        yield gettext("RQ_QUEUES does not have queue %(queue)s, so that no worker takes its jobs.") % {"queue": queue}
        return
    known = fleet.known(queue)
    members = known.of(queue)
    alive = [member for member in members if member.is_alive]
    if known.unasked:
        yield gettext("Redis does not answer, so that nobody can say how many workers are alive.")
    elif not alive:
        yield gettext("No worker of queue %(queue)s is alive. Start one: manage.py rqworker %(queue)s.") % {
            "queue": queue
        }
        yield from _last_heard(members)
    elif known.suspended:
        yield told_to_rest(known.suspended)
    elif all(member.is_leaving for member in alive):
        text = ngettext(
            "%(count)d worker of queue %(queue)s is alive, but ends after the job that it runs.",
            "%(count)d workers of queue %(queue)s are alive, but end after the jobs that they run.",
            len(alive),
        )
        yield text % {"count": len(alive), "queue": queue}
    else:
        text = ngettext(
            "%(count)d worker of queue %(queue)s is alive, %(busy)d busy.",
            "%(count)d workers of queue %(queue)s are alive, %(busy)d busy.",
            len(alive),
        )
        yield text % {"count": len(alive), "queue": queue, "busy": sum(member.is_busy for member in alive)}


def _is_taken(queue: str) -> bool:
    """Whether some worker is known to take the jobs of this queue."""
    known = fleet.known(queue)
    return not known.suspended and any(member.takes_jobs for member in known.of(queue))


def _last_heard(dead: Sequence[Member]) -> Iterable[str]:
    heard = [(member.heard_at, member.name) for member in dead if member.heard_at]
    if heard:
        at, name = max(heard)
        text = gettext("The last one, %(name)s, was heard of at %(time)s; it was killed, or its host is gone.")
        yield text % {"name": name, "time": second(at)}


def _estimate(waits: reasons.Waits, *, is_taken: bool) -> str:
    if not waits.may_start or not is_taken:
        return gettext("Nobody can say when it starts.")
    if Reason.KEY_LIMIT in waits.reasons:
        return gettext("There is no estimate: it depends on when a job with its concurrency key ends.")
    if waits.pace is None:
        text = gettext(
            "There is no estimate: no job of this tenant queue has ended in queue %(queue)s in the last hour."
        )
        return text % {"queue": waits.rq_queue}
    if waits.seconds_to_start is None:
        return gettext("Nobody can say when it starts.")
    text = gettext(
        "It starts in about %(time)s. This is an estimate by the pace of its tenant queue. Jobs that ended in "
        "%(seconds)s with something to run: %(ended)d. Jobs that are to start, this one included: %(position)s."
    )
    return text % {
        "time": between(*waits.seconds_to_start),
        "ended": waits.pace.ended,
        "seconds": duration(waits.pace.seconds),
        "position": _of_numbers(waits.least_position, waits.position),
    }


def _of_numbers(fewest: int, most: int) -> str:
    if fewest >= most:
        return str(most)
    return gettext("%(fewest)s to %(most)s") % {"fewest": fewest, "most": most}
