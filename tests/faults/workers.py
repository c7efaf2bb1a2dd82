"""Worker classes with a place to fail at. The product has no hooks for this: they replace its functions."""

from __future__ import annotations

import errno
import functools
import importlib
import json
import os
import signal
import time
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import rq
from django.db import connections
from django.utils.module_loading import import_string

from tenant_slots import locks, moves, owners, queue_directory, signals, slots, statements
from tenant_slots.db import sessions, transactions
from tenant_slots.models import State
from tenant_slots.repair import steps
from tenant_slots.repair.contact import Contact
from tenant_slots.repair.sweeper import Sweeper
from tenant_slots.running import deliveries, errors, recording
from tenant_slots.running.outbox import Outbox
from tenant_slots.running.run import Run
from tenant_slots.running.supervised import SupervisedRun
from tenant_slots.workers import (
    TenantPreforkWorker,
    TenantSimpleWorker,
    TenantWorker,
    baseline,
    inheritance,
    riding,
    supervisor,
)
from tenant_slots.workers.heartbeats import Heartbeats
from tenant_slots.workers.presence import Presence

WORKER = os.getpid()
"""The process that imports this, of which the others are forks."""

CHOSEN = os.environ.get("FAULTS_WORKER_CLASS", "tenant_slots.workers.TenantWorker")
"""The class of workers for which a test names none."""

KIND = CHOSEN.rpartition("Tenant")[2]
"""How the names of the classes end that are made of it."""

Chosen: Any = import_string(CHOSEN)


class _Elsewhere:
    """As if it ran on another host: nobody here may look at its pids."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        owners.this_host = lambda: "another host"  # type: ignore[assignment]
        super().__init__(*args, **kwargs)


class ElsewhereWorker(_Elsewhere, Chosen): ...


class ElsewherePreforkWorker(_Elsewhere, TenantPreforkWorker): ...


class HeedlessElsewherePreforkWorker(ElsewherePreforkWorker):
    """It goes on with a run that has lost its lease: the control of what ends one."""

    def end_run(self, run: Any) -> None: ...


class OneByOneWorker(Chosen):
    """Its sweeps wait for one Redis that is away after the other, and for them that is an outage of the database."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        queue_directory.look_at_servers = lambda *_, **__: None
        Sweeper._database_answers = lambda sweeper: False  # type: ignore[method-assign]
        super().__init__(*args, **kwargs)


class SilentWorker(TenantSimpleWorker):
    """Says nothing while it runs a job."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.presence = Presence(lambda: None)


class StockElsewhereWorker(rq.Worker):
    """RQ's own class, as if on another host."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        owners.this_host = lambda: "another host"  # type: ignore[assignment]
        super().__init__(*args, **kwargs)


class ImpatientWorker(Chosen):
    """RQ kills a work-horse 60 seconds after its timeout; this one has seen them pass already."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        supervisor.GRACE_AFTER_TIMEOUT = 0


class SabotagedWorker(TenantWorker):
    """Does TEST_SABOTAGE, "before" or "after" a function, once: "module:function before SIGKILL".

    A signal is for the process that calls the function, "worker-SIGKILL" for the worker whose child that may be. With
    TEST_STEP_BY_STEP no release is one statement, as in a database with a rule on one of our tables. For
    TEST_ANNOUNCED_AFTER seconds a run is short, so that its worker keeps its session. With TEST_STANDSTILL the server
    ends no session that stands still in a transaction.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        sabotage(os.environ["TEST_SABOTAGE"], Path(os.environ["TEST_SABOTAGE_FILE"]))
        super().__init__(*args, **kwargs)


class SabotagedPreforkWorker(TenantPreforkWorker):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        sabotage(os.environ["TEST_SABOTAGE"], Path(os.environ["TEST_SABOTAGE_FILE"]))
        super().__init__(*args, **kwargs)


class SabotagedSimpleWorker(TenantSimpleWorker):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        sabotage(os.environ["TEST_SABOTAGE"], Path(os.environ["TEST_SABOTAGE_FILE"]))
        super().__init__(*args, **kwargs)


class _Inheriting:
    """Its children keep its database sessions open: the control of what forgets them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        inheritance.forget_inherited_sessions = lambda: None
        super().__init__(*args, **kwargs)


class InheritingWorker(_Inheriting, SabotagedWorker): ...


class InheritingPreforkWorker(_Inheriting, SabotagedPreforkWorker): ...


class BequeathingWorker(_Inheriting, TenantWorker): ...


class _SlowToHear:
    """A receiver of the project takes TEST_SECONDS_TO_HEAR when a job starts."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        signals.job_started.connect(hear_slowly)
        super().__init__(*args, **kwargs)


def hear_slowly(**_: Any) -> None:
    time.sleep(float(os.environ["TEST_SECONDS_TO_HEAR"]))


class SlowToHearWorker(_SlowToHear, TenantWorker): ...


class SlowToHearPreforkWorker(_SlowToHear, TenantPreforkWorker): ...


class _Mute:
    """Nobody hears of its runs, as where the thread that runs a job is to send heartbeats once its function is called.

    The control of what comes before that.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.heartbeats.beat = lambda _: 1.0  # type: ignore[attr-defined]


class MuteWorker(_Mute, TenantWorker): ...


class MuteSlowToHearWorker(_Mute, SlowToHearWorker): ...


class WokenPreforkWorker(_Mute, SabotagedPreforkWorker):
    """Its heartbeats do not come first when it goes on after a standstill."""


class WokenElsewhereWorker(_Elsewhere, _Mute, SabotagedWorker): ...


class WokenElsewherePreforkWorker(_Elsewhere, _Mute, SabotagedPreforkWorker): ...


class WokenElsewhereSimpleWorker(_Elsewhere, _Mute, SabotagedSimpleWorker): ...


class UnaskingWorker(WokenElsewhereWorker):
    """It calls a function without a question, however long ago the run began: the control of that."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        Run.is_overtaken = lambda run: False  # type: ignore[method-assign]
        super().__init__(*args, **kwargs)


class ImportingWorker(TenantWorker):
    """Its own process imports the module of a job, too: the control of what is left to the work-horse."""

    def _hand_out(self, job: Any, queue: Any, run: SupervisedRun | None) -> None:
        assert run is not None
        assert run.job is not None
        importlib.import_module(run.job.task.rpartition(".")[0])
        super()._hand_out(job, queue, run)


class RashWorker(TenantWorker):
    """Its sweeps go by heartbeats alone, whatever may keep them out: the control of ``silence``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        steps.silent = lambda jobs, _, contact: list(jobs) if contact.covers_a_lease() else []
        steps.is_silent = lambda job, stale: stale.filter(pk=job.pk).exists()
        super().__init__(*args, **kwargs)


class HastyWorker(TenantWorker):
    """Its sweeps do not ask how long they could have heard of others: the control of unbroken contact."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        Contact.covers_a_lease = lambda _: True  # type: ignore[method-assign]
        super().__init__(*args, **kwargs)


class WaitingWorker(TenantWorker):
    """Waits for the database with the end of a job: the control of ends that are kept while it goes on."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        recording.record_end_briefly = recording.record_end
        super().__init__(*args, **kwargs)


class ForgettingWorker(TenantWorker):
    """Goes on, and keeps no end that the database has not taken: the other control."""

    def keep_what_is_left(self, **_: Any) -> bool:
        self.witness.idle()
        return False


class SparingWorker(TenantWorker):
    """It, or its sweep, kills a work-horse alone: the control of what goes with it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        os.killpg = os.kill
        super().__init__(*args, **kwargs)


class LateWorker(Chosen):
    """It has looked for Redis for a minute in vain: RQ waits ever longer before it looks again."""

    exponential_backoff_factor = 60.0


class _Crowded:
    """The system has no room for another process as long as the file TEST_NO_ROOM exists.

    Another file says that it had none for a work-horse; then the worker waits for TEST_SECONDS_WITHOUT_HORSE.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        supervisor.SECONDS_WITHOUT_HORSE = int(os.environ.get("TEST_SECONDS_WITHOUT_HORSE", "1"))
        os.fork = self._fork_if_there_is_room(os.fork)
        super().__init__(*args, **kwargs)

    def _put_back(self, *args: Any) -> None:
        Path(os.environ["TEST_NO_ROOM"]).with_suffix(".met").touch()
        super()._put_back(*args)  # type: ignore[misc]

    @staticmethod
    def _fork_if_there_is_room(fork: Any) -> Any:
        def replacement() -> int:
            if Path(os.environ["TEST_NO_ROOM"]).exists():
                raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            pid: int = fork()
            return pid

        return replacement


class CrowdedWorker(_Crowded, TenantWorker): ...


class CrowdedPreforkWorker(_Crowded, TenantPreforkWorker): ...


class CountingCrowdedWorker(CrowdedWorker):
    """Takes a work-horse that could not be forked for one that has died: the control of jobs that are put back."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        SupervisedRun.put_back = lambda _: None  # type: ignore[method-assign]
        super().__init__(*args, **kwargs)


class NegligentPreforkWorker(TenantPreforkWorker):
    """Its work-horse does not tidy up after a job: the control of what it leaves in database sessions."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        baseline.restore_sessions = lambda: None
        riding.leave_transactions = lambda *_: None
        super().__init__(*args, **kwargs)


class BlindWorker(SabotagedWorker):
    """Waits for the next heartbeat when it has told RQ of a run: the control of the look at what came before."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        Heartbeats.look_now = lambda _: None  # type: ignore[method-assign]
        super().__init__(*args, **kwargs)


class HeedlessWorker(SabotagedWorker):
    """Records an end without asking whether the job was to be canceled: the control of those that are promised."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # A statement that brings a job to that state asks nothing. Which state it is the values say.
        moves.leaving = lambda states, _, *how: statements.leaving(states, State.CANCELED, *how)
        super().__init__(*args, **kwargs)


class GullibleWorker(SabotagedWorker):
    """Reads an outcome that is said to be there, whole or not: the control of the outbox's header and checksum."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        Outbox.put = put_header_first  # type: ignore[method-assign]
        Outbox.take = take_on_trust  # type: ignore[method-assign]
        super().__init__(*args, **kwargs)


def put_header_first(outbox: Outbox, token: int, outcome: dict[str, Any]) -> None:
    content = json.dumps(outcome).encode()
    with outbox._file.opened() as file:
        os.pwrite(file, outbox.header.pack(token, len(content), 0), 0)
        put_content(file, content)


def put_content(file: int, content: bytes) -> None:
    os.pwrite(file, content, Outbox.header.size)


def take_on_trust(outbox: Outbox, token: int) -> Any:
    with outbox._file.opened() as file:
        named, length, _ = outbox.header.unpack(os.pread(file, outbox.header.size, 0))
        return json.loads(os.pread(file, length, outbox.header.size)) if named == token else None


class UnguardedPreforkWorker(SabotagedPreforkWorker):
    """Its work-horse takes a child that a job has forked for itself: the control of whom a worker listens to."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        Run._is_mine = lambda _: True  # type: ignore[method-assign]
        riding.os = SimpleNamespace(environ=os.environ, getpid=lambda: WORKER, getppid=os.getppid)
        super().__init__(*args, **kwargs)


class RedisFirstWorker(Chosen):
    """Its heartbeats wait for Redis before they go to the database: the control of what must not."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        beat = slots.beat

        def beat_after_redis(*of_run: Any) -> bool:
            self.connection.ping()
            return beat(*of_run)

        slots.beat = beat_after_redis  # type: ignore[assignment]
        super().__init__(*args, **kwargs)


class SabotagedStockWorker(rq.Worker):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        sabotage(os.environ["TEST_SABOTAGE"], Path(os.environ["TEST_SABOTAGE_FILE"]))
        super().__init__(*args, **kwargs)


def sabotage(plan: str, armed: Path) -> None:
    """Act once, before or after the first call of any of the functions that the plan names."""
    if "TEST_STEP_BY_STEP" in os.environ:
        locks._step_by_step.add("default")
    if "TEST_STANDSTILL" in os.environ:
        transactions.STANDSTILL_SHARE = 0
    if "TEST_ANNOUNCED_AFTER" in os.environ:
        supervisor.ANNOUNCED_AFTER = float(os.environ["TEST_ANNOUNCED_AFTER"])
    targets, moment, action = plan.split()
    for target in targets.split(","):
        _sabotage(target, moment, action, armed)


def _sabotage(target: str, moment: str, action: str, armed: Path) -> None:
    module, _, path = target.partition(":")
    *owners, name = path.split(".")
    owner = functools.reduce(getattr, owners, importlib.import_module(module))
    original = getattr(owner, name)

    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        if moment == "before":
            _act_once(action, armed)
        result = original(*args, **kwargs)
        if moment == "after":
            _act_once(action, armed)
        return result

    setattr(owner, name, replacement)


def _act_once(action: str, armed: Path) -> None:
    """Only the process that takes the file away acts."""
    try:
        armed.rename(armed.with_suffix(".done"))
    except FileNotFoundError:
        return
    if action == "pause":
        while not armed.with_suffix(".go").exists():
            time.sleep(0.01)
    elif action.startswith("worker-"):
        _signal_worker(signal.Signals[action.removeprefix("worker-")])
    else:
        os.kill(os.getpid(), signal.Signals[action])


def _signal_worker(number: signal.Signals) -> None:
    os.kill(WORKER, number)
    while number == signal.SIGKILL:
        signal.pause()  # a work-horse dies with its worker, in a moment


class ForgetfulWorker(Chosen):
    """It keeps no end that the database does not take: the control of what does."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.kept.add = lambda ending: None


class KeepingSessionWorker(Chosen):
    """The session in which it records starts and ends is not closed while a job lasts."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        supervisor.ANNOUNCED_AFTER = 60
        super().__init__(*args, **kwargs)


class ClosingWorker(KeepingSessionWorker):
    """Its children close the sessions that they inherit: the control of what forgets them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        inheritance.forget_inherited_sessions = _close_inherited_sessions
        super().__init__(*args, **kwargs)


def _close_inherited_sessions() -> None:
    for wrapper in [*sessions._private, *connections.all(initialized_only=True)]:
        if wrapper.connection is not None:
            wrapper.connection.close()  # the driver's, which says goodbye to the server


class _Formatting:
    """Has every error formatted, whatever comes of that: the control of what takes another one in its place."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        errors.described = lambda error: ("".join(traceback.format_exception(error)), error)
        super().__init__(*args, **kwargs)


class FormattingWorker(_Formatting, TenantWorker): ...


class FormattingPreforkWorker(_Formatting, TenantPreforkWorker): ...


class FormattingSimpleWorker(_Formatting, TenantSimpleWorker): ...


class SatisfiedWorker(Chosen):
    """Takes a delivery that runs nothing for a success of its job: the control of what leaves RQ's record alone."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        deliveries.ignored = deliveries.later = lambda *_, **__: None  # type: ignore[assignment]
        super().__init__(*args, **kwargs)


class NotingCommandsWorker(SabotagedPreforkWorker):
    """Notes each command that it has carried out."""

    def handle_payload(self, message: Any) -> None:
        super().handle_payload(message)
        with open(os.environ["TEST_HEARD"], "a") as heard:
            heard.write("command\n")


class KillingAsRQWorker(NotingCommandsWorker):
    """It kills what RQ takes for its work-horse: the control of what kills none that has ended."""

    def kill_horse(self, *args: Any) -> None:
        rq.Worker.kill_horse(self, *args)
