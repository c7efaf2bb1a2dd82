"""One run of a job, from its start to the recording of its end."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any
from uuid import UUID

from rq.job import Job

from tenant_slots import dispatch, owners, transitions
from tenant_slots.models import TenantJob
from tenant_slots.owners import Owner, this_process
from tenant_slots.running.outbox import Outbox
from tenant_slots.running.recording import Outcome, persistently, record_end, record_start
from tenant_slots.running.witness import Witness
from tenant_slots.statements import JOB

logger = logging.getLogger("tenant_slots")

ATTRIBUTE = "tenant_slots_run"
"""Of RQ's job object: where a worker class of ours hands the run to the function that RQ calls."""


class Run:
    """What the process that runs a job and the worker that watches over it share.

    Args:
        worker: its name.
        witness: where the run notes which slot it holds.
        beats: whether somebody sends heartbeats while the job runs.
        on_outage: told each time that the database was out of reach when a start or an end was to be recorded.
    """

    def __init__(
        self,
        worker: str,
        witness: Witness | None = None,
        *,
        beats: bool = False,
        on_outage: Callable[[], object] = lambda: None,
    ) -> None:
        self.worker = worker
        self.witness = witness or Witness()
        self.beats = beats
        self._on_outage = on_outage
        self.job: TenantJob | None = None
        """The job, once it is marked as running."""
        self._process = os.getpid()

    @staticmethod
    def of(rq_job: Job | None) -> Run:
        """The run that belongs to what RQ delivered.

        A worker of ours has arranged one. A job on a synchronous queue that is run inside a job without a slot shares
        that one's. Otherwise nobody has arranged any, and it is one of its own.
        """
        run: Run | None = getattr(rq_job, ATTRIBUTE, None)
        if run is None:
            around: Run | None = getattr(dispatch.job_around(), ATTRIBUTE, None)
            run = around if around and around.job is None else Run((rq_job and rq_job.worker_name) or "")
            run.hand_to(rq_job)
        return run

    def hand_to(self, rq_job: Job | None) -> None:
        if rq_job is not None:
            setattr(rq_job, ATTRIBUTE, self)

    @property
    def owner(self) -> Owner:
        """This process, with the token of a new run: of a fork it is another one than of its parent."""
        return this_process(self.worker, beats=self.beats)

    def begin(self, uuid: UUID, attempt: int) -> bool:
        """Mark an admitted job as running. False when this attempt is not to be run: it ended, was canceled or runs."""
        found: list[Any] = persistently(lambda: JOB.rows(uuid=uuid), self._on_outage) or []
        return any(job.attempt == attempt and self.start(job) for job in found)

    def start(self, job: TenantJob) -> bool:
        """As `begin`, for a job that is at hand."""
        owner, self._process = self.owner, os.getpid()
        self.witness.taking(job.pk, owner.token)
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
        self.witness.holding()
        self.job = job
        transitions.started(job)
        return True

    def _record_start(self, job: TenantJob, owner: Owner) -> bool:
        return record_start(job, owner, self._on_outage)

    def end(self, outcome: Outcome) -> None:
        """The function has ended: record how, and give the slot to the next job."""
        job = self.job
        assert job is not None, "a run ends that has not begun"
        if not self._is_mine():
            return
        self.witness.ending()
        try:
            released = record_end(job, outcome, self._on_outage)
        finally:
            self.is_over()
        if released is None:
            logger.error("the end of job %s could not be recorded; the sweep will find it", job.uuid)
            return
        self.witness.idle()
        if not released:
            logger.warning("job %s ended after its slot had been taken away", job.uuid)
        transitions.follow(job, released, outcome.get("error", ""))

    def _is_mine(self) -> bool:
        """A child that the function has forked, and that fell through to here, speaks for no run."""
        return self._process == os.getpid()

    def is_over(self) -> None:
        """This process no longer executes it, whatever the database says."""
        if self.job is not None:
            owners.runs_here.discard(self.job.token)
        self.job = None


class HorsesRun(Run):
    """The run in a work-horse whose worker has marked the job as running, and will record its end."""

    def __init__(self, run: Run, outbox: Outbox) -> None:
        super().__init__(run.worker, run.witness, beats=run.beats)
        self.job = run.job
        self._outbox = outbox

    def begin(self, uuid: UUID, attempt: int) -> bool:
        """Whether it is this attempt that the worker has begun."""
        return self.job is not None and (self.job.uuid, self.job.attempt) == (uuid, attempt)

    def end(self, outcome: Outcome) -> None:
        if self.job is not None and self._is_mine():
            self._outbox.put(self.job.token, outcome)
