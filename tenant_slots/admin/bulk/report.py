"""How far a bulk change is, in words and numbers: for its page, and for each poll of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Exists, OuterRef, QuerySet
from django.utils.formats import localize
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from tenant_slots.admin.bulk import run
from tenant_slots.admin.cells import Cells
from tenant_slots.admin.confirmed import FAILED, GONE, Confirmed
from tenant_slots.admin.reasons import why_waiting
from tenant_slots.admin.words import second
from tenant_slots.models import ENDED, BulkChange, BulkChunk, Ending, State, TenantJob
from tenant_slots.stats.expressions import UNLISTED
from tenant_slots.stats.reasons import MOST_NAMED

WAITS, RUNS, STOPS, LOST = "waits", "runs", "stops", "lost"
STOPPED_WAITING = "stopped waiting"

STATES = {
    WAITS: _("It waits for a worker."),
    RUNS: _("It runs."),
    STOPS: _("It stops after what it is doing now."),
    STOPPED_WAITING: _("It was stopped while it waited for a worker: nothing more is done."),
    LOST: _("Nobody goes on with it. What was done is done; the rest can still be done."),
    Ending.DONE.value: _("It is done."),
    Ending.STOPPED.value: _("It was stopped. What was done before stays done."),
    Ending.FORBIDDEN.value: _("It has ended early: whoever confirmed it may not do this any more."),
}


@dataclass(frozen=True)
class Report:
    """One look at a bulk change."""

    change: BulkChange
    state: str
    done: int
    lines: dict[str, str]
    """What came of how many, by outcome; "" for none."""
    problems: list[str]
    reasons: list[str]
    """Why it does not run."""

    @property
    def numbers(self) -> str:
        facts = {"done": localize(self.done), "total": localize(self.change.total)}
        return gettext("%(done)s of %(total)s") % facts


def in_words(state: str) -> Any:
    """One that only SQL from outside has written has no words but itself."""
    return STATES.get(state, state)


def in_short(
    changes: Sequence[BulkChange], action_of: Callable[[BulkChange], Confirmed | None]
) -> list[tuple[str, str]]:
    """The state and the numbers of each. Two queries, however many."""
    open_ones = [change for change in changes if not change.ending]
    jobs = {
        job.uuid: job for job in TenantJob.objects.filter(uuid__in=[one.job for one in open_ones]).only("uuid", "state")
    }
    came_of = {one.pk: Counter(one.outcomes) for one in changes}
    chunks = BulkChunk.objects.filter(change__in=[one.pk for one in open_ones])
    for pk, some in chunks.values_list("change", "outcomes"):
        came_of[pk] += Counter(some)
    found = []
    for change in changes:
        action = action_of(change)
        done = run.done_of(came_of[change.pk], action.counts if action else "")
        report = Report(change, _state(change, jobs.get(change.job)), done, {}, [], [])
        found.append((report.state, report.numbers))
    return found


def lost() -> QuerySet[BulkChange]:
    """Those that have not ended and with which nobody goes on."""
    going_on = TenantJob.objects.filter(uuid=OuterRef("job")).exclude(state__in=ENDED)
    changes: QuerySet[BulkChange] = BulkChange.objects.filter(~Exists(going_on), ended_at=None)
    return changes


def of(change: BulkChange, action: Confirmed | None, *, shows_error: bool = False, names_others: bool = True) -> Report:
    """None for one that has ended; else three queries, and those that say why it waits.

    Args:
        shows_error: also why the job has failed, for those who may see errors.
        names_others: also the bulk changes that it waits for, for those who may see them.
    """
    job = None if change.ending else _job_of(change)
    state = _state(change, job)
    came_of = run.outcomes(change)
    done = run.done_of(came_of, action.counts if action else "")
    texts = dict(action.outcomes) if action else dict.fromkeys(came_of)
    lines = {outcome: _line(text, came_of[outcome], outcome) for outcome, text in texts.items()}
    lines |= {outcome: _common_line(outcome, came_of[outcome]) for outcome in (GONE, FAILED)}
    lines["left"] = _left_line(change, action, came_of, change.total - done)
    reasons = []
    if job is not None and state == WAITS:
        reasons = why_waiting(job, most_named=MOST_NAMED if names_others else 0)
    if state == LOST and shows_error and job is not None and job.error:
        reasons = [job.error.strip().rpartition("\n")[2]]
    return Report(change, state, done, lines, run.problems(change), reasons)


def _job_of(change: BulkChange) -> TenantJob | None:
    jobs = TenantJob.objects.filter(uuid=change.job).select_related("tenant_queue")
    found: TenantJob | None = jobs.defer(*(name for name in UNLISTED if name != "error")).first()
    return found


def _state(change: BulkChange, job: TenantJob | None) -> str:
    if change.ending:
        return change.ending
    if job is None or job.has_ended:
        return LOST
    if change.cancel_requested_at is not None:
        return STOPS if job.state == State.RUNNING else STOPPED_WAITING
    return RUNS if job.state == State.RUNNING else WAITS


def _line(text: Any, count: int, outcome: str) -> str:
    if not count:
        return ""
    return str(text % {"count": count}) if text is not None else f"{outcome}: {count}"


def _common_line(outcome: str, count: int) -> str:
    if not count:
        return ""
    if outcome == GONE:
        return ngettext("%(count)d object is gone.", "%(count)d objects are gone.", count) % {"count": count}
    text = ngettext("%(count)d could not be changed.", "%(count)d could not be changed.", count)
    return text % {"count": count}


def _left_line(change: BulkChange, action: Confirmed | None, came_of: Counter[str], left: int) -> str:
    """Of those that the page had counted. Why each of them was left is known only where all of their tenant queues were
    changed.
    """
    if left <= 0 or not change.ending:
        return ""
    if change.ending != Ending.DONE or action is None or not action.counts:
        text = ngettext("%(count)d was not looked at.", "%(count)d were not looked at.", left)
    elif came_of[GONE] or came_of[FAILED]:
        text = ngettext(
            "%(count)d job was left alone: it had moved on, or its tenant queue is gone or could not be changed.",
            "%(count)d jobs were left alone: they had moved on, or their tenant queue is gone or could not be changed.",
            left,
        )
    else:
        text = ngettext(
            "%(count)d job was left alone: it had moved on.", "%(count)d jobs were left alone: they had moved on.", left
        )
    return text % {"count": left}


def cells(report: Report) -> Cells:
    """By ``bulk.<place>``, as the live list has its own."""
    total = str(max(1, report.change.total))
    found: Cells = {
        "bulk.section": {"attrs": {"data-state": report.state}},
        "bulk.state": {"text": str(in_words(report.state))},
        "bulk.numbers": {"text": report.numbers},
        "bulk.bar": {"attrs": {"max": total, "value": str(min(report.done, int(total)))}},
        "bulk.reasons": {"text": " ".join(report.reasons)},
        "bulk.problems": {"text": "\n".join(report.problems)},
        "bulk.started": {"text": second(report.change.started_at) if report.change.started_at else ""},
        "bulk.ended": {"text": second(report.change.ended_at) if report.change.ended_at else ""},
    }
    return found | {f"bulk.line.{outcome}": {"text": line} for outcome, line in report.lines.items()}
