"""Worker classes that a control or a test needs in a process of its own."""

from __future__ import annotations

import errno
import os
import resource
import sys
import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import rq
from rq.job import Job
from rq.timeouts import BaseDeathPenalty

from tenant_slots import signals
from tenant_slots.db import leftovers as db_leftovers
from tenant_slots.running.run import Run
from tenant_slots.workers import TenantPreforkWorker, TenantSimpleWorker, TenantWorker, riding, simple, supervisor
from tenant_slots.workers.baseline import Baseline
from tenant_slots.workers.horses import Horse
from tests.workers import receivers


class WrappingJob(Job):
    """A project's class of RQ's jobs."""

    def perform(self) -> Any:
        return ["wrapped", super().perform()]


class TalkativeWorker(TenantWorker):
    """It prints something for each job, which is not seen until its output is flushed."""

    def execute_job(self, *args: Any, **kwargs: Any) -> None:
        sys.stdout.write("words of the worker\n")
        super().execute_job(*args, **kwargs)


class ForgetfulWorker(TenantPreforkWorker):
    """The control: its work-horses put nothing back."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        Baseline.restore = Baseline.let_go = lambda _: None  # type: ignore[method-assign]
        riding.leave_transactions = lambda *_: None
        riding.output = SimpleNamespace(flush=lambda: True)  # type: ignore[assignment]
        self._make_ready = lambda _: None  # type: ignore[method-assign]
        riding.garbage = SimpleNamespace(  # type: ignore[assignment]
            collect_between_jobs=lambda: None, in_time=nullcontext, left_in_time=nullcontext
        )


class CarelessWorker(ForgetfulWorker):
    """The control of what cannot be put back: its work-horses go on whatever a job has left."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        Baseline.is_restorable = lambda *_: True  # type: ignore[method-assign]


class ForgetfulSimpleWorker(TenantSimpleWorker):
    """The control: it puts nothing back."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        simple.leave_transactions = simple.restore_sessions = lambda *_: None


class CarefreeWorker(ForgetfulWorker):
    """The control of what is gone anyway: its jobs share a context, and RQ sets and turns off no alarm for them."""

    class death_penalty_class(BaseDeathPenalty):
        def setup_death_penalty(self) -> None: ...

        def cancel_death_penalty(self) -> None: ...

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        riding.contextvars = SimpleNamespace(copy_context=lambda: SimpleNamespace(run=_called))  # type: ignore[assignment]


def _called(function: Any, *args: Any) -> Any:
    return function(*args)


class OneWitness:
    """The control: a job that another one runs notes its run where the other's is noted."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        run_of = Run.of

        def run_noted_by_worker(rq_job: Any) -> Run:
            run = run_of(rq_job)
            if type(run) is Run:
                run.witness = self.witness  # type: ignore[attr-defined]
            return run

        Run.of = staticmethod(run_noted_by_worker)  # type: ignore[method-assign]


class OneWitnessPreforkWorker(OneWitness, TenantPreforkWorker):
    pass


class OneWitnessSimpleWorker(OneWitness, TenantSimpleWorker):
    pass


class Unsuspecting:
    """The control: it does not look at what a job registers with the driver."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        db_leftovers._has_registered_nothing = lambda *_: True


class UnsuspectingSimpleWorker(Unsuspecting, TenantSimpleWorker):
    pass


class UnsuspectingStockWorker(Unsuspecting, rq.Worker):
    pass


class FewFilesWorker(TenantPreforkWorker):
    """It and its work-horses may have 200 files open, each."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


class WithoutDescriptors:
    """The system gives no descriptor of a process: TEST_ERRNO says why."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        os.pidfd_open = self._fail

    def _fail(self, pid: int) -> int:
        raise OSError(int(os.environ["TEST_ERRNO"]), "no descriptor")


class WorkerWithoutDescriptors(WithoutDescriptors, TenantWorker):
    pass


class PreforkWorkerWithoutDescriptors(WithoutDescriptors, TenantPreforkWorker):
    pass


class Hearing:
    """Knows receivers of the project, as where its apps connect some."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        receivers.connect()
        supervisor.SECONDS_TO_TELL = 1


class HearingWorker(Hearing, TenantWorker):
    pass


class HearingPreforkWorker(Hearing, TenantPreforkWorker):
    pass


class HearingSimpleWorker(Hearing, TenantSimpleWorker):
    """The control."""


class CrampedWorker(Hearing, TenantPreforkWorker):
    """On a system that has room for a work-horse at the second try only."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        supervisor.SECONDS_WITHOUT_HORSE = 0
        supervisor.Horse = self._no_horse  # type: ignore[assignment, misc]

    def _no_horse(self, *args: Any) -> None:
        supervisor.Horse = Horse  # type: ignore[misc]
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")


class Broken:
    """Meets an error in its loop that nobody has foreseen."""

    def reorder_queues(self, reference_queue: Any) -> None:
        raise RuntimeError("nobody has foreseen it")


class BrokenWorker(Broken, TenantWorker):
    pass


class BrokenPreforkWorker(Broken, TenantPreforkWorker):
    pass


class BrokenSimpleWorker(Broken, TenantSimpleWorker):
    pass


class BrokenStockWorker(Broken, rq.Worker):
    """The control."""


class BrokenWhereItSettlesWorker(TenantPreforkWorker):
    """Meets such an error before it asks whether workers are suspended."""

    _has_failed = False

    def settle_up(self) -> None:
        if not self._has_failed:
            self._has_failed = True
            raise RuntimeError("nobody has foreseen it")


class SlowlyTold:
    """The project has a receiver of ends that takes three seconds."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        signals.job_ended.connect(_take_long)


def _take_long(**_: Any) -> None:
    time.sleep(3)


class SlowlyToldPrefork(SlowlyTold, TenantPreforkWorker): ...


class SlowlyToldFork(SlowlyTold, TenantWorker): ...


class SlowlyToldSimple(SlowlyTold, TenantSimpleWorker): ...
