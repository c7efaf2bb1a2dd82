"""What has become of a job, as far as its row and the history of staff's actions know: moments, waits, durations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.utils.translation import gettext, ngettext

from tenant_slots.admin import audit
from tenant_slots.admin.words import NOTHING, duration
from tenant_slots.models import State, TenantJob
from tenant_slots.models.states import UNADMITTED, UNSTARTED
from tenant_slots.tasks import attempts


@dataclass(frozen=True)
class Event:
    at: datetime
    text: str
    by: str = ""
    """The worker, or who did it."""
    error: str = ""


def events_of(job: TenantJob, *, shows_errors: bool) -> list[Event]:
    """The earliest first. One query, for the history.

    Args:
        shows_errors: what runs raised too, and not its class alone.
    """
    return sorted((*_of_row(job), *_of_runs(job, shows_errors), *_of_staff(job)), key=lambda event: event.at)


def _of_row(job: TenantJob) -> Iterator[Event]:
    attempt = {"attempt": job.attempt}
    yield Event(job.enqueued_at, gettext("enqueued"))
    if job.run_after and job.run_after > job.enqueued_at:
        yield Event(job.run_after, gettext("not to start before this time"))
    if job.expires_at and job.state in UNSTARTED:
        yield Event(job.expires_at, gettext("canceled at this time if it has not begun"))
    if job.attempt and job.admitted_at:
        yield Event(job.admitted_at, gettext("attempt %(attempt)d: got a slot") % attempt)
    if job.attempt and job.started_at and (job.has_begun or job.state in UNADMITTED):  # else of the attempt before
        yield Event(job.started_at, gettext("attempt %(attempt)d: started") % attempt, job.worker)
    if job.state == State.RUNNING and job.beats and job.beat_at:
        yield Event(job.beat_at, gettext("last heartbeat"), job.worker)
    if job.cancel_requested_at:
        yield Event(job.cancel_requested_at, gettext("asked to stop"))
    if job.ended_at:
        yield Event(job.ended_at, str(job.get_state_display()))


def _of_runs(job: TenantJob, shows_errors: bool) -> Iterator[Event]:
    """Those that did not end well."""
    for run in attempts.ended_runs(job):
        started, ended = (attempts.time_of(run, name) for name in ("started", "ended"))
        if started and run["attempt"] != job.attempt:  # the row has the start of the last one
            yield Event(started, gettext("attempt %(attempt)d: started") % run, run["worker"])
        if ended and not _is_last_of(job, run):
            yield Event(ended, _end_in_words(run), run["worker"], run["text"] if shows_errors else "")


def _is_last_of(job: TenantJob, run: dict[str, Any]) -> bool:
    """Of a canceled job the row has the end."""
    return run["error"] == attempts.CANCELED and run["attempt"] == job.attempt and job.has_ended


def _end_in_words(run: dict[str, Any]) -> str:
    if run["error"] is attempts.NO_ERROR:
        return gettext("attempt %(attempt)d: put back") % run
    if run["error"] == attempts.RUN_LOST:
        return gettext("attempt %(attempt)d: its run was lost") % run
    if run["error"] == attempts.CANCELED:
        return str(State.CANCELED.label)
    name = attempts.class_raised(run) or NOTHING
    return gettext("attempt %(attempt)d: raised %(error)s") % {**run, "error": name}


def _of_staff(job: TenantJob) -> Iterator[Event]:
    for line in audit.actions_on(job):
        text = f"{line.what}: {line.old} → {line.new}" if line.old else line.what
        yield Event(line.time, f"{text} ({line.reason})" if line.reason else text, line.user)


def durations_of(job: TenantJob, now: datetime) -> list[tuple[str, str]]:
    """How long it waited and ran, each with its name."""
    ready = max(job.enqueued_at, job.run_after or job.enqueued_at)
    found: list[tuple[str, datetime, datetime]] = []
    if job.state in UNSTARTED:
        ran_until = (attempts.time_of(run, "ended") for run in attempts.ended_runs(job))
        found.append((gettext("has waited for"), max([ready, *filter(None, ran_until)]), now))
    elif job.started_at and job.attempt == 1:
        found.append((gettext("waited for"), ready, job.started_at))
    if job.started_at and job.state == State.RUNNING:
        found.append((gettext("has run for"), job.started_at, now))
    elif job.has_begun and job.started_at and job.ended_at and (job.state != State.CANCELED or job.cancel_requested_at):
        found.append((gettext("ran for"), job.started_at, job.ended_at))
    return [(name, duration(max(0.0, (end - begin).total_seconds()))) for name, begin, end in found]


def earlier_attempts(job: TenantJob) -> list[str]:
    """Why there was more than one, in words."""
    failures, crashes, ends, deferrals = job.failures, job.crashes, job.interruptions, job.deferrals
    counted: list[tuple[Any, int]] = [
        (ngettext("%(count)d attempt failed", "%(count)d attempts failed", failures), failures),
        (ngettext("%(count)d attempt crashed", "%(count)d attempts crashed", crashes), crashes),
        (ngettext("%(count)d attempt ended with its worker", "%(count)d attempts ended with their worker", ends), ends),
        (ngettext("it was put off %(count)d time", "it was put off %(count)d times", deferrals), deferrals),
    ]
    return [text % {"count": count} for text, count in counted if count]
