"""Which process runs which job, with real workers."""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import django_rq
import pytest
from django.db import connection
from django.test import override_settings
from rq.command import send_stop_job_command
from rq.job import JobStatus

from tenant_slots import garbage, queue_directory
from tenant_slots.models import ENDED, State, TenantJob, TenantQueue
from tenant_slots.workers import TenantPreforkWorker, horses
from tenant_slots.workers.children import Child
from tenant_slots.workers.horses import Horse, Order, Reins, Report, RQEnd
from tests import factories
from tests.factories import counters_match, fresh
from tests.faults.observer import is_gone
from tests.history import History
from tests.jobs import wait_for_file
from tests.processes import MANAGE, ROOT, Workers, environment, is_announced, wait_until
from tests.workers import jobs

PREFORK = "tenant_slots.workers.TenantPreforkWorker"
FORKING = "tenant_slots.workers.TenantWorker"

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def results() -> list[int]:
    """Of jobs that return their process, in the order of their ends."""
    return list(TenantJob.objects.filter(state=State.FINISHED).order_by("ended_at").values_list("result", flat=True))


def ended(*rows: TenantJob) -> bool:
    return all(fresh(row).state in ENDED for row in rows)


def enqueue(number: int) -> list[TenantJob]:
    return [jobs.process.enqueue("acme") for _ in range(number)]


def burst(workers: Workers, worker_class: str = PREFORK, *arguments: str) -> int:
    return workers.run("--burst", *arguments, worker_class=worker_class).returncode


def test_a_horse_runs_many_jobs_and_then_another_one_does(workers: Workers) -> None:
    workers.variables["TEST_TENANT_SLOTS"] = json.dumps({"JOBS_PER_HORSE": 4})
    enqueue(10)
    assert burst(workers) == 0
    pids = results()
    first, second, third = dict.fromkeys(pids)
    assert pids == [first] * 4 + [second] * 4 + [third] * 2


def test_a_horse_runs_many_coroutines(workers: Workers) -> None:
    """What they use a thread for leaves none behind."""
    for _ in range(3):
        jobs.process_of_coroutine.enqueue("acme")
    assert burst(workers) == 0
    assert len(results()) == 3
    assert len(set(results())) == 1


def test_control_the_other_class_has_a_horse_for_each_job(workers: Workers) -> None:
    enqueue(4)
    assert burst(workers, FORKING) == 0
    assert len(set(results())) == 4


def test_a_horse_that_has_grown_too_large_runs_no_other_job(workers: Workers) -> None:
    workers.variables["TEST_TENANT_SLOTS"] = json.dumps({"HORSE_MAX_RSS": 250 * jobs.MEGABYTE})
    enqueue(1)
    jobs.grow.enqueue("acme", 1)
    jobs.grow.enqueue("acme", 250)
    enqueue(2)
    assert burst(workers) == 0
    first, small, large, after, later = results()
    assert first == small == large != after == later


def test_a_horse_in_which_jobs_leave_files_open_is_replaced_before_others_find_no_room(workers: Workers) -> None:
    """And one that has left few is not."""
    for number in (50, 1, 50, 50, 1, 50, 50):
        jobs.open_files.enqueue("acme", number)
    assert burst(workers, "tests.workers.classes.FewFilesWorker") == 0
    first, second, *_ = pids = results()
    assert len(pids) == 7
    assert first == second
    assert len(set(pids)) > 2


def test_a_horse_whose_job_took_too_long_runs_no_other_one(workers: Workers) -> None:
    enqueue(1)
    slow = jobs.too_slow.enqueue("acme")
    enqueue(2)
    assert burst(workers) == 0
    before, after, later = results()
    assert before != after == later
    assert (fresh(slow).state, slow.crashes) == (State.FAILED, 0)
    assert "JobTimeoutException" in slow.error


def test_a_horse_whose_job_has_died_takes_nothing_along_but_that_job(workers: Workers, tmp_path: Path) -> None:
    enqueue(1)
    dies = jobs.die_once.enqueue("acme", str(tmp_path / "died"))
    enqueue(2)
    assert burst(workers) == 0
    before, again, after, later = results()
    assert before != again == after == later
    assert (fresh(dies).state, dies.attempt, dies.crashes) == (State.FINISHED, 2, 1)
    assert counters_match()


@pytest.mark.usefixtures("workers")
@pytest.mark.parametrize("worker_class", [PREFORK, FORKING])
def test_what_jobs_print_is_seen(worker_class: str) -> None:
    for text in ("first words", "second words"):
        jobs.say.enqueue("acme", text)
    said = [line for line in printed_by(worker_class) if line.endswith(" words")]
    assert said == ["first words", "second words"]


@pytest.mark.usefixtures("workers")
def test_what_their_worker_has_printed_is_seen_once() -> None:
    """And not once more for each process that it has forked."""
    enqueue(2)
    assert printed_by("tests.workers.classes.TalkativeWorker").count("words of the worker") == 2


@pytest.mark.parametrize("worker_class", [PREFORK, FORKING])
def test_a_job_runs_once_on_a_worker_with_another_serializer_than_its_queue(
    workers: Workers, worker_class: str
) -> None:
    """RQ has been handed nothing of it that a worker of ours does not know."""
    pushed, taken = enqueue(2)
    assert queue_directory.queue_named("imports").job_ids == [fresh(pushed).rq_id]
    assert burst(workers, worker_class, "--serializer", "rq.serializers.JSONSerializer") == 0
    assert [(fresh(job).state, job.attempt, job.crashes) for job in (pushed, taken)] == [(State.FINISHED, 1, 0)] * 2


@pytest.mark.django_db(transaction=True)
def test_a_database_of_redis_that_a_job_has_selected_is_not_that_of_the_next_one() -> None:
    """It would not be found there, and be taken for one that was deleted."""
    selects = jobs.select_another_database.enqueue("acme")
    plain = django_rq.get_queue("imports").enqueue(os.getpid)
    factories.burst(TenantPreforkWorker)
    assert plain.get_status() == JobStatus.FINISHED
    assert plain.return_value() == fresh(selects).result, "another horse has run it, nothing was tested"


@pytest.mark.parametrize("blocks_alarms", [False, True])
@pytest.mark.django_db(transaction=True)
def test_a_horse_whose_output_nobody_reads_runs_no_other_job(
    blocks_alarms: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would wait for that."""
    monkeypatch.setattr(garbage, "SECONDS_TO_END", 1)
    prints = jobs.print_where_nobody_reads.enqueue("acme", blocks_alarms)
    after, last = enqueue(2)
    began = time.monotonic()
    factories.burst(TenantPreforkWorker)
    assert time.monotonic() - began < 10
    assert fresh(prints).result != fresh(after).result == fresh(last).result


@pytest.mark.usefixtures("workers")
@pytest.mark.parametrize("worker_class", [PREFORK, FORKING, "tenant_slots.workers.TenantSimpleWorker"])
def test_a_worker_that_was_started_without_standard_files_has_nothing_of_its_own_there(worker_class: str) -> None:
    """A job that prints would write over the witness of its own run."""
    job = jobs.standard_files.enqueue("acme")
    command = ["sh", "-c", '"$@" <&- >&- 2>&-', "sh", *MANAGE, "rqworker", "imports", "--burst"]
    assert subprocess.run(command, cwd=ROOT, env=environment(worker_class)).returncode == 0
    assert fresh(job).result == [os.devnull] * 3


def printed_by(worker_class: str) -> list[str]:
    """Lines. Where the output is no terminal Python keeps it back."""
    command = [*MANAGE, "rqworker", "imports", "--burst"]
    variables = {**environment(worker_class), "PYTHONUNBUFFERED": ""}
    ended = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=True)
    return ended.stdout.splitlines()


@pytest.mark.parametrize("command", [["sleep", "60"], ["sh", "-c", "sleep 60 & echo $!"]])
def test_a_process_that_a_job_left_outlives_the_crash_of_the_next_one(
    workers: Workers, tmp_path: Path, command: list[str]
) -> None:
    """As it does where each job has a work-horse of its own: a crash takes along what that job has started."""
    left = jobs.leave_process.enqueue("acme", command)
    dies = jobs.die_once.enqueue("acme", str(tmp_path / "died"))
    assert burst(workers) == 0
    assert (fresh(left).state, fresh(dies).state, dies.crashes) == (State.FINISHED, State.FINISHED, 1)
    assert not is_gone(left.result)
    os.kill(left.result, signal.SIGKILL)


def test_jobs_that_share_memory_share_a_horse(workers: Workers) -> None:
    """And one that leaves a process besides has it replaced all the same."""
    sharing = [jobs.share_memory.enqueue("acme") for _ in range(3)]
    left = jobs.leave_process.enqueue("acme", ["sleep", "60"])
    after = jobs.share_memory.enqueue("acme")
    assert burst(workers) == 0
    (horse,) = {fresh(job).result for job in sharing}
    assert fresh(after).result != horse
    os.kill(fresh(left).result, signal.SIGKILL)


@pytest.fixture
def long_one(workers: Workers, history: History, tmp_path: Path) -> TenantJob:
    """A job that runs after another one, in the same work-horse, until something ends it; and RQ knows of it."""
    workers.start(1, worker_class=PREFORK)
    enqueue(1)
    job = wait_for_file.enqueue("acme", "long", history.path, str(tmp_path / "never"))
    wait_until(lambda: is_announced(job))
    wait_until(history.started)
    assert history.events()[0].pid == results()[0]
    return job


@pytest.mark.skipif(connection.vendor != "postgresql", reason="a session of SQLite is closed")
def test_a_session_that_the_server_ends_while_a_horse_is_idle_fails_no_job(workers: Workers) -> None:
    """As a restart does, or ``idle_session_timeout``."""
    workers.start(1, worker_class=PREFORK)
    first = jobs.backend.enqueue("acme")
    wait_until(lambda: ended(first))
    horse, backend = first.result
    wait_until(lambda: is_idle(backend))
    end_session(backend)
    second = jobs.backend.enqueue("acme")
    wait_until(lambda: ended(second))
    assert second.state == State.FINISHED, second.error
    assert second.result[0] == horse


def is_idle(backend: int) -> bool:
    """Whether its last statement was none of a job, but of what puts a session back."""
    sessions = "SELECT 1 FROM pg_stat_activity WHERE state = 'idle' AND query NOT LIKE '%%backend_pid%%' AND pid = %s"
    with connection.cursor() as cursor:
        cursor.execute(sessions, [backend])
        return cursor.fetchone() is not None


def end_session(backend: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 10000)", [backend])  # waits until it has ended
        assert cursor.fetchone() == (True,)


def goes_on(workers: Workers) -> bool:
    """Whether the same worker runs the next jobs, in another work-horse than the first one."""
    rows = enqueue(2)
    wait_until(lambda: ended(*rows))
    before, after, later, *_ = results()
    return workers.processes[0].poll() is None and before != after == later


def test_a_canceled_job_takes_its_horse_along_and_nothing_else(workers: Workers, long_one: TenantJob) -> None:
    assert long_one.cancel()
    wait_until(lambda: ended(long_one))
    assert long_one.state == State.CANCELED
    assert goes_on(workers)


def test_rqs_stop_command_takes_the_horse_along_and_nothing_else(workers: Workers, long_one: TenantJob) -> None:
    send_stop_job_command(django_rq.get_connection("imports"), long_one.rq_id)
    wait_until(lambda: ended(long_one))
    assert long_one.state == State.CANCELED
    rq_job = queue_directory.queue_named("imports").fetch_job(long_one.last_rq_id)
    assert rq_job is not None
    wait_until(lambda: rq_job.get_status() == JobStatus.STOPPED)
    assert goes_on(workers)


def test_a_killed_horse_takes_nothing_along_but_its_job(
    workers: Workers, long_one: TenantJob, history: History, tmp_path: Path
) -> None:
    os.kill(history.events()[0].pid, signal.SIGKILL)
    wait_until(lambda: len(history.started()) == 2)
    assert history.events()[0].pid != history.events()[1].pid
    (tmp_path / "never").touch()
    wait_until(lambda: ended(long_one))
    assert (long_one.state, long_one.attempt, long_one.crashes) == (State.FINISHED, 2, 1)
    assert workers.processes[0].poll() is None


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EMFILE])
@pytest.mark.parametrize("kind", ["Worker", "PreforkWorker"])
def test_a_horse_that_the_system_gives_no_descriptor_of_runs_its_job_once(
    workers: Workers, kind: str, number: int
) -> None:
    workers.variables["TEST_ERRNO"] = str(number)
    rows = enqueue(2)
    assert burst(workers, f"tests.workers.classes.{kind}WithoutDescriptors") == 0
    assert len(results()) == 2
    assert [fresh(row).attempt for row in rows] == [1, 1]


@pytest.mark.parametrize("report", [Report(), None], ids=["it has reported", "control: it has not"])
def test_what_a_horse_has_said_right_before_its_end_is_heard(report: Report | None) -> None:
    horse = Horse(lambda reins: reins.report(report) if report else None)
    try:
        wait_until(horse.child.has_ended)
        assert horse.report(0) == report
    finally:
        horse.part(0)


def leave_a_process(path: Path, end: Callable[[], object]) -> Callable[[Reins], object]:
    """In its group, as what a job has started; and then it ends at once, by a success."""

    def live(reins: Reins) -> None:
        path.write_text(str(subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL).pid))
        if end is report:
            reins.report(Report())
        else:
            end()

    return live


def report() -> None: ...


def end_process() -> None:
    os._exit(0)


def become_a_program_that_ends() -> None:
    os.execv("/bin/true", ["true"])  # noqa: S606


@pytest.mark.parametrize("order", [Order("some job", "imports"), None])
@pytest.mark.parametrize("end", [end_process, become_a_program_that_ends, report])
def test_what_a_job_has_started_goes_with_a_horse_that_ends_in_its_midst(
    end: Callable[[], object], order: Order | None, tmp_path: Path
) -> None:
    """Whatever it calls that end: the job runs again. What a job leaves that has ended stays, as does a part of it
    where none was under way.
    """
    horse, path = Horse(leave_a_process(tmp_path / "left", end), order), tmp_path / "left"
    try:
        wait_until(horse.child.has_ended)
        left = int(path.read_text())
        if order is not None and end is not report:
            wait_until(lambda: is_gone(left))
        else:
            assert not is_gone(left)
            os.kill(left, signal.SIGKILL)
    finally:
        horse.part(0)


MARK = b"its mark"


class Drops:
    """A line from which a message comes byte by byte. Notes where to."""

    def __init__(self, message: bytes) -> None:
        self._rest = memoryview(message)
        self.places: list[object] = []

    def recv_into(self, place: memoryview) -> int:
        self.places.append(place.obj)
        place[:1], self._rest = self._rest[:1], self._rest[1:]
        return 1


def close_all_files() -> None:
    os.closerange(3, 4096)


def become_another_program() -> None:
    os.execv("/bin/sleep", ["sleep", "60"])  # noqa: S606


@pytest.mark.parametrize("leaves", [close_all_files, become_another_program])
def test_a_horse_that_has_hung_up_is_waited_for_in_peace(leaves: Callable[[], object]) -> None:
    """Its job has closed all files, as who becomes a daemon does, or is another program by now."""

    def live(reins: Reins) -> None:
        leaves()
        signal.pause()

    horse = Horse(live)
    try:
        assert horse.report(30) is None
        began = time.monotonic()
        assert horse.report(0.2) is None
        assert time.monotonic() - began >= 0.19, "who waits for it would spin"
        assert not horse.child.has_ended()
    finally:
        horse.part(0)
    assert horse.child.has_ended()


def test_what_a_horse_says_is_written_once_in_however_many_parts_it_comes() -> None:
    """To join the parts one by one takes the square of their number: minutes for a large result."""
    message = b"what a work-horse has to say"
    drops = Drops(horses.HEADER.pack(MARK, len(message)) + message)
    assert horses.Inbox(drops, MARK).next() == message  # type: ignore[arg-type]
    assert len(drops.places) == horses.HEADER.size + len(message)
    assert len(set(map(id, drops.places))) == 2, "its length, and the message"


@pytest.fixture
def _no_hanging() -> Iterator[None]:
    """Whoever waits for ever gets an error."""

    def too_late(*_: object) -> None:
        raise AssertionError("nobody will send the rest")

    before = signal.signal(signal.SIGALRM, too_late)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("_no_hanging")
def test_a_horse_that_is_not_needed_ends_by_itself_although_another_child_has_its_line_too() -> None:
    """A sweep, or RQ's scheduler, that was forked while it lived."""
    horse = Horse(lambda reins: reins.next_order())
    other = Child(signal.pause)
    try:
        horse.part(10)
        assert horse.child.status == 0, "it was waited for in vain, and killed"
    finally:
        other.end()


def die_and_leave_a_child(reins: Reins) -> None:
    """The child has the line open, too."""
    if not os.fork():
        signal.pause()
    reins._line.sendall(horses.HEADER.pack(reins._mark, 1000) + b"half")
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.usefixtures("_no_hanging")
def test_a_horse_that_dies_in_the_midst_of_its_report_has_ended_although_its_line_is_open() -> None:
    horse = Horse(die_and_leave_a_child)
    try:
        wait_until(lambda: horse.report(1) is None and horse.child.has_ended())
        assert horse.report(0) is None
    finally:
        horse.part(0)


def stop_in_the_midst(reins: Reins) -> None:
    """Of a report that is too large to be taken in one part."""
    sending = threading.Thread(target=reins.report, args=[Report(RQEnd(1, 2, None, b"x" * 5_000_000))])
    sending.start()
    room = select.poll()
    room.register(reins._line, select.POLLOUT)
    wait_until(lambda: not room.poll(0))
    os.kill(os.getpid(), signal.SIGSTOP)
    sending.join()
    signal.pause()


@pytest.mark.usefixtures("_no_hanging")
def test_nobody_waits_for_the_rest_of_a_report_of_a_horse_that_stands_still_and_none_of_it_is_lost() -> None:
    horse = Horse(stop_in_the_midst)
    try:
        os.waitid(os.P_PID, horse.pid, os.WSTOPPED | os.WNOWAIT)
        assert horse.report(0.2) is None
        os.kill(horse.pid, signal.SIGCONT)
        report = horse.report(20)
        assert report is not None
        assert report.ended is not None
        assert report.ended.result == b"x" * 5_000_000
    finally:
        horse.part(0)


@pytest.mark.usefixtures("_no_hanging")
def test_a_horse_that_stands_still_and_does_not_take_an_order_is_killed() -> None:
    """The order is too large to be left for it on the line."""
    horse = Horse(lambda _: os.kill(os.getpid(), signal.SIGSTOP))
    os.waitid(os.P_PID, horse.pid, os.WSTOPPED | os.WNOWAIT)
    try:
        with override_settings(TENANT_SLOTS={"BEAT_INTERVAL": 0.1, "LEASE_TTL": 1}):
            assert not horse.can_take(Order("job", "imports", rq_fields={"description": "x" * 5_000_000}))
        assert horse.child.has_ended()
    finally:
        horse.part(0)


@pytest.mark.parametrize("worker_class", [PREFORK, FORKING])
def test_max_jobs_is_kept(workers: Workers, worker_class: str) -> None:
    enqueue(5)
    assert burst(workers, worker_class, "--max-jobs", "3") == 0
    assert len(results()) == 3
    assert TenantQueue.objects.get().current_job == 0
    assert burst(workers, worker_class) == 0
    assert len(results()) == 5


@pytest.mark.parametrize("worker_class", [PREFORK, FORKING])
def test_a_pool_of_workers_runs_all_jobs(transactional_db: None, _nobody_is_left: None, worker_class: str) -> None:
    TenantQueue.objects.create(tenant="acme", queue="imports", max_job=4)
    enqueue(12)
    command = [sys.executable, "-W", "ignore", "manage.py", "rqworker-pool", "imports", "--num-workers", "2", "--burst"]
    assert subprocess.run(command, cwd=ROOT, env=environment(worker_class), timeout=60).returncode == 0
    assert len(results()) == 12
    assert counters_match()


@pytest.mark.parametrize("worker_class", [PREFORK, FORKING])
def test_rqs_scheduler_runs_beside_the_jobs(workers: Workers, worker_class: str) -> None:
    (worker,) = workers.start(1, "--with-scheduler", worker_class=worker_class)
    rq_job = django_rq.get_queue("imports").enqueue_at(LONG_AGO, "operator.add", 1, 2)
    rows = enqueue(2)
    wait_until(lambda: ended(*rows) and rq_job.return_value(refresh=True) == 3)
    worker.terminate()
    assert worker.wait(15) == 0


@pytest.mark.parametrize(
    ("worker_class", "code"),
    [
        ("tests.workers.classes.BrokenWorker", 1),
        ("tests.workers.classes.BrokenPreforkWorker", 1),
        ("tests.workers.classes.BrokenSimpleWorker", 1),
        ("tests.workers.classes.BrokenWhereItSettlesWorker", 1),
        pytest.param("tests.workers.classes.BrokenStockWorker", 0, id="control"),
    ],
)
def test_a_worker_whose_loop_ends_by_an_error_says_so(workers: Workers, worker_class: str, code: int) -> None:
    """To whatever supervises it, which would start one that has failed again."""
    enqueue(1)
    assert workers.run(worker_class=worker_class).returncode == code


@pytest.mark.parametrize("worker_class", [PREFORK, FORKING, "tenant_slots.workers.TenantSimpleWorker"])
def test_a_worker_that_is_told_to_end_has_not_failed(workers: Workers, worker_class: str) -> None:
    (worker,) = workers.start(1, worker_class=worker_class)
    rows = enqueue(2)
    wait_until(lambda: ended(*rows))
    worker.terminate()
    assert worker.wait(15) == 0
