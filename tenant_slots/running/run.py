"""One run of a job, from its start to the recording of its end."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from uuid import UUID

from django.db import Error, connections
from rq.job import Job, _job_stack
from rq.timeouts import JobTimeoutException

from tenant_slots import fair_order, logs, owners, slots, transitions
from tenant_slots.conf import app_settings
from tenant_slots.db.commits import after_commit
from tenant_slots.db.compiled import Asked, together
from tenant_slots.db.leftovers import Found, note_sessions
from tenant_slots.db.sessions import close_if_ended
from tenant_slots.fair_order import Freed, Turn
from tenant_slots.hand_over import Choosing
from tenant_slots.models import State, TenantJob
from tenant_slots.owners import Owner, this_process
from tenant_slots.queue_directory import OUT_OF_REACH
from tenant_slots.releases import Admission, Release
from tenant_slots.running import recording
from tenant_slots.running.outbox import Outbox
from tenant_slots.running.recording import EndRefused, Outcome, StartKeptOut, StartRefused, persistently
from tenant_slots.statements import JOB, QUEUE_OF_JOB
from tenant_slots.transitions import TellOrder
from tenant_slots.validation import one_more
from tenant_slots.witness import Witness

logger = logging.getLogger("tenant_slots")

UNASKED_SHARE = 1 / 2
"""Of a lease: a function that is called so soon after the start of its run is called in the lease's time."""

SECONDS_TO_CHARGE = 0.01
"""Spent on a tenant after the end of its job, from which on it is charged for them."""

ATTRIBUTE = "tenant_slots_run"
"""Of RQ's job object: where a worker class of ours hands the run to the function that RQ calls."""


class Run:
    """One run of a job in this process.

    Args:
        worker: its name.
        beats: whether somebody sends heartbeats while the job runs.
        on_outage: told each time that the database was out of reach when a start or an end was to be recorded; not
            when only this job's row could not be written.
    """

    _horse = 0
    """The process that calls the function, if it is not the owner's."""

    def __init__(self, worker: str, *, beats: bool = False, on_outage: Callable[[], object] = lambda: None) -> None:
        self.worker = worker
        self.witness = Witness()
        self.beats = beats
        self.job: TenantJob | None = None
        """The job, once it is marked as running."""
        self._on_outage = on_outage
        self._process = os.getpid()
        self._found = Found()
        self.began = time.monotonic()
        """When its start was to be recorded, by the clock of this host."""
        self._known = self.began
        """When that was known to be recorded."""
        self._was_taken = False
        self._came_of_it: State | None = None
        self.stays_first = False
        """Whether the tenant would be next once more, as things were when it had its turn."""
        self.is_recorded = False
        """Whether its end is in the database."""
        self.is_kept_out = False
        """Whether the start could not be written: see `StartKeptOut`."""
        self.is_charged = False
        """Whether the order of tenants knows already how long it took."""
        self._timeout: JobTimeoutException | None = None
        """RQ's alarm, if it has rung while others were told of the start."""
        self._followed: tuple[Freed, float] | None = None
        """The slot that it has left, and when, where no worker of ours sees how long what follows takes."""

    @staticmethod
    def of(rq_job: Job | None) -> Run:
        """The run that belongs to what RQ delivered.

        A worker of ours has arranged one. A job on a synchronous queue that is run inside a job without a slot shares
        that one's. Otherwise nobody has arranged any, and it is one of its own.
        """
        run: Run | None = getattr(rq_job, ATTRIBUTE, None)
        if run is None:
            around: Run | None = getattr(job_around(), ATTRIBUTE, None)
            run = around if around and around.job is None else Run((rq_job and rq_job.worker_name) or "")
            run.hand_to(rq_job)
        return run

    @property
    def _later(self) -> Callable[[TellOrder], object] | None:
        """As of `transitions.in_turn`."""
        return None

    def hand_to(self, rq_job: Job | None) -> None:
        if rq_job is not None:
            setattr(rq_job, ATTRIBUTE, self)

    @property
    def owner(self) -> Owner:
        """This process, with the token of a new run: of a fork it is another one than of its parent."""
        return this_process(self.worker, beats=self.beats)

    def begin(self, uuid: UUID, attempt: int) -> bool:
        """Mark an admitted job as running. False when this attempt is not to be run: it ended, was canceled or runs.

        Or it would not be admitted by now, and has gone back to its place in the backlog; or the database refuses that
        it runs, and it has failed.
        """
        if self.job is not None:
            self.tell_started(self.job)
            return (self.job.uuid, self.job.attempt) == (uuid, attempt)
        job = persistently(lambda: _stored(uuid), self._on_outage)
        if job is None or job.attempt != attempt:
            return False
        try:
            has_started = self.start(job)
        except StartRefused as error:
            self.fail_refused(job, error)
            return False
        if has_started:
            return True
        if job.state == State.QUEUED and not self.is_kept_out:
            recording.put_back(job, self._on_outage)
        return False

    def fail_refused(self, job: TenantJob, error: StartRefused) -> None:
        """Back in the backlog it would be admitted again at once; in its slot every sweep would push it to RQ again.

        The second is what comes of one that the database lets neither fail nor be canceled.
        """
        logger.error("the database refuses the start of job %s", job.uuid, exc_info=error, extra=logs.about(job))
        self.witness.idle()
        problem = f"the database refuses its start: {error.reason}"
        if not any(_ends_unstarted(job, state, problem) for state in (State.FAILED, State.CANCELED)):
            text = "job %s, whose start the database refuses, is left to a sweep"
            logger.error(text, job.uuid, extra=logs.about(job))

    def take(self, turn: Turn) -> TenantJob | None:
        """A tenant's turn has come here: admit its next job and mark it as running. None when it has none.

        Raises:
            Error: the database is out of reach. A job that may have been marked all the same is named by the witness.
        """
        admit_and_start = partial(slots.admit_and_start, turn.tenant_queue_id, turn.rq_queue)
        self._take_turn(turn, admit_and_start)
        if self.job is None:
            self.witness.idle()  # somebody may have turned out to hold the row of the job that was chosen
        return self.job

    def _take_turn(self, turn: Turn, admit_and_start: Callable[[Owner, Choosing], Admission]) -> None:
        self._prepare()
        owner = self.owner
        with transitions.in_turn(turn, self._later) as came_of:
            admission = admit_and_start(owner, partial(self._taking, owner=owner))
            came_of(admission)
            self.stays_first = turn.stays_first and (admission.has_more or admission.is_full)
            self._has_taken(admission, owner)
            transitions.push(admission.jobs, turn.rq_queue)

    def _taking(self, job: TenantJob, owner: Owner) -> None:
        self.witness.taking(job.pk, owner.token, owner.horse or owner.pid)

    def _has_taken(self, admission: Admission, owner: Owner) -> None:
        if admission.started is None:
            self.witness.idle()
        else:
            owners.runs_here.add(owner.token)
            self._was_taken = True
            admission.started.token = owner.token
            self._holds(admission.started)

    def start(self, job: TenantJob) -> bool:
        """As `begin`, for a job that is at hand."""
        self._prepare()
        owner = self.owner
        self._taking(job, owner)
        owners.runs_here.add(owner.token)
        started = False
        try:
            started = self._record_start(job, owner)
        finally:
            if not started:
                owners.runs_here.discard(owner.token)
        if not started:
            self.witness.idle()
            return False
        self._holds(job)
        self.tell_started(job)
        return True

    def _prepare(self) -> None:
        self._process = os.getpid()
        note_sessions()
        self._found = recording.found()
        self.began = time.monotonic()

    def _holds(self, job: TenantJob) -> None:
        self._known = time.monotonic()
        self.witness.holding()
        self.job = job
        logs.remember(job)

    def tell_started(self, job: TenantJob) -> None:
        """A receiver may take all the time that the job has: see `require_time`."""
        try:
            if self._was_taken:
                transitions.admitted_here(job)
            else:
                self._make_room(job)
            transitions.started(job)
        except JobTimeoutException as error:
            self._timeout = error

    def require_time(self) -> None:
        """Raises JobTimeoutException where that is over before the function is called: that is how the job ends."""
        if self._timeout is not None:
            raise self._timeout

    def _make_room(self, job: TenantJob) -> None:
        """The job was taken from RQ's list, which has room for another one."""
        after_commit(partial(transitions.feed, job.rq_queue_name))

    def _record_start(self, job: TenantJob, owner: Owner) -> bool:
        try:
            return recording.record_start(job, owner, self._on_outage)
        except StartKeptOut:
            self.is_kept_out = True
            return False

    def is_overtaken(self) -> bool:
        """Whether its slot may be another run's before its function was called.

        A process that stands still after the start is taken for dead like any other. It is asked for only when that is
        possible, by a heartbeat: from then on there is a whole lease again.
        """
        assert self.job is not None, "a function is to be called whose run has not begun"
        if self.seconds < app_settings.LEASE_TTL * UNASKED_SHARE:
            return False
        try:
            return not slots.beat(self.job.pk, self.job.token, self._horse)
        except Error:
            return True

    def end(self, outcome: Outcome) -> None:
        """The function has ended: record how, and give the slot to the next job."""
        job = self.job
        assert job is not None, "a run ends that has not begun"
        self._came_of_it = None
        if not self._is_mine():
            return
        recording.leave_leftovers(job, self._found)
        self.witness.ending()
        try:
            outcome, released = self._ended(job, outcome)
        finally:
            self.is_over()
        self._came_of_it = State(outcome["state"]) if released is None else released.state
        self.is_recorded = released is not None
        if released is None:
            return
        self.witness.idle()
        if not released:
            logger.warning("job %s ended after its slot had been taken away", job.uuid, extra=logs.about(job))
        self._follow(job, released, outcome, self._free)

    def _ended(self, job: TenantJob, outcome: Outcome) -> tuple[Outcome, Release | None]:
        """What it has ended with, and what came of that.

        Where the database refuses the end the job fails: in its slot it would be taken for lost, and run again.
        """
        try:
            return outcome, self._record_end(job, outcome)
        except EndRefused as error:
            logger.error("the database refuses the end of job %s", job.uuid, exc_info=error, extra=logs.about(job))
            failed = {"state": State.FAILED, "error": f"the database refuses its end: {error.reason}"}
        try:
            return failed, self._record_end(job, failed)
        except EndRefused:
            text = "job %s, whose end the database refuses, is left to a sweep"
            logger.exception(text, job.uuid, extra=logs.about(job))
            return failed, None

    def has_become(self, state: State) -> bool:
        """Whether the end has brought the job there: it may have been canceled, or be another run's by now.

        Where the database could not be asked, what it was to become counts.
        """
        return self._came_of_it == state

    def _follow(self, job: TenantJob, released: Release, outcome: Outcome, free: Callable[[Freed], object]) -> None:
        transitions.follow(job, released, outcome.get("error", ""), self.charge, free=free)

    def _free(self, slot: Freed) -> None:
        transitions.free(slot)
        self._followed = slot, time.monotonic()

    def charge_what_followed(self) -> None:
        """Callbacks and receivers of its end have had the worker for as long as the job itself could have."""
        followed, self._followed = self._followed, None
        if followed is None:
            return
        slot, since = followed
        if (seconds := time.monotonic() - since) >= SECONDS_TO_CHARGE:
            with suppress(*OUT_OF_REACH):
                fair_order.cost(slot.rq_queue, slot.tenant_queue_id, seconds)

    @property
    def seconds(self) -> float:
        """For which it has had its worker by now, that of its start included."""
        return time.monotonic() - self.began

    @property
    def seconds_since_start(self) -> float:
        """For which it has run by now, at least: from the time that its row has for its start."""
        return time.monotonic() - self._known

    @property
    def charge(self) -> float:
        """What the order of tenants is still to be told, as in `Freed`."""
        return fair_order.NOTHING_CHARGED if self.is_charged else self.seconds

    def _record_end(self, job: TenantJob, outcome: Outcome) -> Release | None:
        released = recording.record_end(job, outcome, self._on_outage)
        if released is None:
            text = "the end of job %s could not be recorded; the sweep will find it"
            logger.error(text, job.uuid, extra=logs.about(job))
        return released

    def _is_mine(self) -> bool:
        """A child that the function has forked, and that fell through to here, speaks for no run."""
        return self._process == os.getpid()

    def is_over(self) -> None:
        """This process no longer executes it, whatever the database says."""
        if self.job is not None:
            owners.runs_here.discard(self.job.token)
        self.job = None


def job_around() -> Job | None:
    """The RQ job whose function has RQ run the current one, as on a synchronous queue: RQ keeps them on a stack."""
    current = _job_stack.pop()  # type: ignore[no-untyped-call]
    around: Job | None = _job_stack.top
    if current is not None:
        _job_stack.push(current)  # type: ignore[no-untyped-call]
    return around


def _stored(uuid: UUID) -> TenantJob | None:
    """The job with its tenant queue: whoever notes or traces the run names these, and asks no database for it."""
    jobs, tenant_queues = together((), Asked(JOB, {"uuid": uuid}), Asked(QUEUE_OF_JOB, {"uuid": uuid}))
    for found, tenant_queue in zip(jobs, tenant_queues, strict=False):  # one of each; none where they are deleted
        found.tenant_queue = tenant_queue
    job: TenantJob | None = jobs[0] if jobs else None
    return job


def _ends_unstarted(job: TenantJob, state: State, problem: str) -> bool:
    """Whether the database lets a job that has a slot end so, which is then free."""
    try:
        transitions.release(job, states=(State.QUEUED,), state=state, error=problem)
    except Error:
        logger.exception("the database does not let job %s be %s", job.uuid, state, extra=logs.about(job))
        return False
    return True


class WatchedRun(Run):
    """A run under a worker of ours, which keeps an end that the database does not take at once.

    Args:
        owner: the worker's process, which answers for the run.
        witness, outbox: where the worker sees whether the run has ended, and how.
        horse: the process that calls the function, if it is not the owner's.
        on_outage: as of `Run`.
        free: what is done with the slot that it had.
    """

    def __init__(
        self,
        owner: Owner,
        witness: Witness,
        outbox: Outbox,
        *,
        horse: int = 0,
        on_outage: Callable[[], object] = lambda: None,
        free: Callable[[Freed], object] = transitions.free,
    ) -> None:
        super().__init__(owner.worker, beats=owner.beats, on_outage=on_outage)
        self.witness = witness
        self._owner, self._outbox, self._horse, self._freed = owner, outbox, horse, free

    def _free(self, slot: Freed) -> None:
        self._freed(slot)

    @property
    def owner(self) -> Owner:
        return self._owner.for_run(self._horse)

    def _record_end(self, job: TenantJob, outcome: Outcome) -> Release | None:
        """The outbox first: should this process be killed from now on, its worker records how the job ended."""
        with suppress(OSError):
            self._outbox.put(job.token, outcome)
        close_if_ended(connections[app_settings.DATABASE])  # by a limit for idle ones: no outage
        return self._record_end_briefly(job, outcome)

    def _record_end_briefly(self, job: TenantJob, outcome: Outcome) -> Release | None:
        released = recording.record_end_briefly(job, outcome, self._on_outage)
        if released is None:
            text = "the end of job %s is kept by its worker and recorded as soon as possible"
            logger.warning(text, job.uuid, extra=logs.about(job))
        return released

    def fail(self, error: str) -> None:
        """The function cannot be called."""
        assert self.job is not None, "a run fails that has not begun"
        failures = one_more(self.job.failures)
        outcome: Outcome = {"state": State.FAILED, "error": error, "failures": failures, "unstarted": True}
        with suppress(OSError):
            self._outbox.put(self.job.token, outcome)
        self.end(outcome)
