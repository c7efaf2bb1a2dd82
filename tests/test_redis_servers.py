"""A Redis that is away holds nobody up: neither who enqueues, nor the sweep, nor what is on another server."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from threading import Barrier, Event
from typing import Any

import django_rq
import pytest
import redis
from django.conf import settings
from django.test import override_settings
from redis.connection import AbstractConnection, ConnectionPool
from redis.sentinel import MasterNotFoundError, Sentinel
from rq import Queue
from rq.worker import BaseWorker

from tenant_slots import dispatch, fair_order, fleet, queue_directory, redis_servers
from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.repair import findings, steps
from tenant_slots.workers import TenantSimpleWorker
from tests import jobs
from tests.factories import age, fresh, in_rq, owner, running_job, tenant_queue, waiting_job, work
from tests.faults.servers import django_on_redis
from tests.repair.sweeps import sweep_now
from tests.repair.test_doctor import doctor
from tests.sleeping import replace_sleep

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(params=["a closed port", "a black hole"])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    """Of a Redis that is away: connecting is refused, or works and then nothing is answered."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if request.param == "a black hole":
            server.listen()
        yield f"redis://127.0.0.1:{server.getsockname()[1]}/0"


@pytest.fixture
def away(address: str) -> Iterator[None]:
    """Django is pointed there."""
    with django_on_redis(address):
        yield


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[AbstractConnection]:
    """The connections that were tried to open since."""
    tried: list[AbstractConnection] = []
    connect = redis.Connection._connect

    def counted(self: redis.Connection) -> Any:
        tried.append(self)
        return connect(self)

    monkeypatch.setattr(redis.Connection, "_connect", counted)
    return tried


def test_many_jobs_are_left_to_the_sweep_after_one_offer_that_failed(away: None, attempts: list[Any]) -> None:
    TenantQueue.objects.create(tenant="acme", queue="imports", max_job=5)
    jobs.fail.enqueue_many([(("acme",), {})] * 5)
    assert 1 <= len(attempts) <= 2, "the second try is for a connection that the server had closed meanwhile"
    assert TenantJob.objects.waiting().count() == 5
    assert TenantQueue.objects.get().current_job == 0, "a slot is taken when a worker is about to be free, and none is"


def test_the_next_caller_does_not_wait_for_it_again(away: None, attempts: list[Any]) -> None:
    jobs.fail.enqueue("acme")
    assert attempts, "or nothing has been tried, and nothing is proven below"
    attempts.clear()
    jobs.fail.enqueue("another")
    assert attempts == []
    assert fleet.known().unasked
    assert attempts == []
    assert TenantJob.objects.waiting().count() == 2


def test_after_a_while_one_caller_looks_again(away: None, attempts: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_servers, "AWAY_SECONDS", 0)
    jobs.fail.enqueue("acme")
    attempts.clear()
    jobs.fail.enqueue("another")
    assert attempts


def test_nobody_waits_for_longer_than_our_own_timeouts(away: None, attempts: list[Any]) -> None:
    jobs.fail.enqueue("acme")
    for connection in attempts:
        assert connection.socket_connect_timeout == redis_servers.CONNECT_SECONDS
        assert connection.socket_timeout == redis_servers.ANSWER_SECONDS


def test_what_the_project_connects_with_is_left_as_it_was() -> None:
    mine = django_rq.get_queue("imports")
    options = dict(mine.connection.connection_pool.connection_kwargs)
    queue_directory.use_queue(mine)
    ours: dict[str, Any] = queue_directory.queue_named("imports").connection.connection_pool.connection_kwargs
    assert ours["socket_timeout"] == redis_servers.ANSWER_SECONDS
    assert mine.connection.connection_pool.connection_kwargs == options
    shared = {name for name, value in ours.items() if name in options and value is options[name]}
    assert not shared & {"himport_registry", "maint_notifications_pool_handler"}, "they belong to the other pool"


def test_a_shorter_timeout_of_the_projects_own_is_kept() -> None:
    theirs = redis.Redis(socket_timeout=0.5, socket_connect_timeout=0.25)
    options = redis_servers.impatient(theirs).connection_pool.connection_kwargs
    assert (options["socket_timeout"], options["socket_connect_timeout"]) == (0.5, 0.25)


def test_a_connection_that_the_server_has_closed_is_opened_anew_and_is_no_absence() -> None:
    queue = queue_directory.queue_named("imports")
    with queue.connection.client() as own:
        number = own.client_id()
    django_rq.get_connection("imports").client_kill_filter(_id=number)
    job = jobs.fail.enqueue("acme")
    assert in_rq() == 1
    work()
    job.refresh_from_db()
    assert job.state == State.FAILED


def test_who_finds_all_connections_in_use_waits_for_one_and_takes_no_server_for_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A web server may have more threads than the project allows connections."""
    with django_on_redis(f"{settings.RQ_QUEUES['imports']['URL']}?max_connections=1"):
        of_another_thread = queue_directory.queue_named("imports").connection.client()
        replace_sleep(monkeypatch, lambda seconds: of_another_thread.close())
        assert queue_directory.window_of("imports") == 0
    assert not redis_servers.absences()


def test_a_server_without_memory_is_not_away(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = queue_directory.queue_named("imports").connection
    with pytest.raises(redis.ResponseError), redis_servers.asked(connection):
        raise redis.exceptions.OutOfMemoryError
    with redis_servers.asked(connection):
        assert connection.ping()


@pytest.mark.parametrize("is_the_same", [True, pytest.param(False, id="control")])
def test_a_server_is_away_with_all_its_databases(is_the_same: bool, attempts: list[Any]) -> None:
    with closed_port() as one, closed_port() as another:
        urls = {"imports": f"{one}/0", "reports": f"{one if is_the_same else another}/1"}
        with override_settings(RQ_QUEUES={name: {"URL": url} for name, url in urls.items()}):
            with pytest.raises(redis.ConnectionError):
                queue_directory.window_of("imports")
            attempts.clear()
            with pytest.raises(redis.ConnectionError):
                queue_directory.window_of("reports")
            assert bool(attempts) is not is_the_same
            assert list(queue_directory.by_server(list(urls))) == ["imports", "reports"], "they have nothing in common"


@pytest.mark.parametrize(
    ("error", "is_away"),
    [(redis.AuthenticationError, False), pytest.param(redis.ConnectionError, True, id="control")],
)
def test_a_wrong_password_in_one_database_is_no_absence_of_the_others(error: type[Exception], is_away: bool) -> None:
    here, beside = (redis.Redis(host="one server", db=number) for number in (0, 1))
    with pytest.raises(error), redis_servers.asked(here):
        raise error
    try:
        with pytest.raises(redis_servers.ServerAway) if is_away else nullcontext(), redis_servers.asked(beside):
            pass
    finally:
        redis_servers.forget_absences()


# --- several servers ------------------------------------------------------------------------------------------------


@contextmanager
def closed_port() -> Iterator[str]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        yield f"redis://127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def fleet_of_three(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, redis.Redis]]:
    """Servers by name. Who asks one for more than a `ping` finds none."""
    yield {name: redis.Redis(host=name) for name in ("one", "two", "three")}
    redis_servers.forget_absences()


@pytest.mark.parametrize(
    ("other", "is_same"),
    [
        ({"URL": "redis://localhost:6379/0"}, True),
        ({"URL": "redis://localhost:6379"}, True),
        ({"URL": "redis://"}, True),
        ({"HOST": "localhost", "PORT": 6379, "DB": 0}, True),
        ({"HOST": "localhost", "PORT": 6379}, True),
        ({"HOST": "localhost", "PORT": "6379", "DB": "0"}, True),
        ({"HOST": "LocalHost", "PORT": 6379}, True),
        ({"HOST": "localhost", "PORT": "6379", "DB": "1"}, False),
        ({"URL": "redis://localhost:6379/1"}, False),
        ({"URL": "redis://localhost:6380"}, False),
        ({"URL": "redis://other"}, False),
    ],
)
def test_addresses_of_one_database_need_not_be_written_alike(other: dict[str, Any], is_same: bool) -> None:
    with override_settings(RQ_QUEUES={"imports": {"URL": "redis://localhost/"}, "imports_bulk": other}):
        assert ("imports_bulk" in queue_directory.queues_beside("imports")) is is_same


def host_of(connection: redis.Redis) -> str:
    return str(connection.connection_pool.connection_kwargs["host"])


def only_these_answer(monkeypatch: pytest.MonkeyPatch, *hosts: str) -> list[str]:
    """Returns a list that takes who was asked."""
    asked: list[str] = []

    def ping(connection: redis.Redis) -> bool:
        asked.append(host_of(connection))
        if host_of(connection) not in hosts:
            raise redis.TimeoutError("Timeout reading from socket")
        return True

    monkeypatch.setattr(redis.Redis, "ping", ping)
    return asked


def pauses(servers: dict[str, redis.Redis]) -> dict[str, float]:
    known = redis_servers.absences()
    found = {name: known.get(redis_servers.server_of(connection)) for name, connection in servers.items()}
    return {name: absence.pause for name, absence in found.items() if absence}


def time_passes() -> None:
    for server, absence in redis_servers.absences().items():
        redis_servers._away[server] = absence._replace(until=0.0)


def test_servers_are_waited_for_together(
    fleet_of_three: dict[str, redis.Redis], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one that is asked gets no further before the last one is."""
    all_are_asked = Barrier(len(fleet_of_three))

    def ping(connection: redis.Redis) -> bool:
        all_are_asked.wait(timeout=10)
        raise redis.TimeoutError

    monkeypatch.setattr(redis.Redis, "ping", ping)
    redis_servers.look_at(fleet_of_three.values(), 30)
    assert not all_are_asked.broken
    assert pauses(fleet_of_three).keys() == fleet_of_three.keys()


def test_one_whose_timeouts_do_not_end_the_question_is_left_alone(
    fleet_of_three: dict[str, redis.Redis], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name is looked up, or the project's own pool is patient: the sweep goes on all the same."""
    is_over = Event()

    def ping(connection: redis.Redis) -> bool:
        return host_of(connection) != "two" or is_over.wait(60)

    monkeypatch.setattr(redis.Redis, "ping", ping)
    redis_servers.look_at(fleet_of_three.values(), 0.2)
    assert list(pauses(fleet_of_three)) == ["two"]
    is_over.set()


def test_one_that_stays_away_is_asked_ever_more_seldom_until_it_is_back(
    fleet_of_three: dict[str, redis.Redis], monkeypatch: pytest.MonkeyPatch
) -> None:
    only_these_answer(monkeypatch, "one", "three")
    for pause in (10, 20, 30, 30):
        redis_servers.look_at(fleet_of_three.values(), 10, ever_more_seldom=True)
        assert pauses(fleet_of_three) == {"two": pause}
        asked = only_these_answer(monkeypatch, "one", "three")
        redis_servers.look_at(fleet_of_three.values(), 10, ever_more_seldom=True)
        assert sorted(asked) == ["one", "three"], "it is not asked in the pause, which becomes no longer by that"
        assert pauses(fleet_of_three) == {"two": pause}
        time_passes()
    only_these_answer(monkeypatch, "one", "two", "three")
    redis_servers.look_at(fleet_of_three.values(), 10, ever_more_seldom=True)
    assert pauses(fleet_of_three) == {}


def test_while_none_answers_each_is_asked_as_often_as_ever(
    fleet_of_three: dict[str, redis.Redis], monkeypatch: pytest.MonkeyPatch
) -> None:
    only_these_answer(monkeypatch)
    for _ in range(3):
        redis_servers.look_at(fleet_of_three.values(), 10, ever_more_seldom=True)
        assert set(pauses(fleet_of_three).values()) == {redis_servers.AWAY_SECONDS}
        time_passes()


def test_what_a_forked_process_has_learnt_is_known_but_of_the_own_server(
    fleet_of_three: dict[str, redis.Redis],
) -> None:
    one, two, three = map(redis_servers.server_of, fleet_of_three.values())
    redis_servers._away[three] = redis_servers.Absence(0.0, "before")
    absence = redis_servers.Absence(time.monotonic() + 20, "away", 20)
    redis_servers.take_over({one: absence, two: absence}, but_of=fleet_of_three["one"])
    assert redis_servers.absences() == {two: absence, three: redis_servers.Absence(0.0, "before")}
    redis_servers.take_over({}, but_of=fleet_of_three["two"])
    assert two in redis_servers.absences(), "what it has found out itself"


def sentinel_service(name: str, port: int = 26379) -> redis.Redis:
    return Sentinel([("127.0.0.1", port)], socket_timeout=30).master_for(name)


def test_the_connection_to_a_sentinels_service_asks_sentinels_that_are_not_waited_for_either() -> None:
    theirs = sentinel_service("one")
    pool: Any = redis_servers.impatient(theirs).connection_pool
    assert (pool.service_name, pool.is_master) == ("one", True)
    assert pool.connection_class is theirs.connection_pool.connection_class
    assert pool.connection_kwargs["socket_timeout"] == redis_servers.ANSWER_SECONDS
    (sentinel,) = pool.sentinel_manager.sentinels
    assert sentinel.connection_pool.connection_kwargs["socket_timeout"] == redis_servers.ANSWER_SECONDS
    (other,) = theirs.connection_pool.sentinel_manager.sentinels
    assert other.connection_pool.connection_kwargs["socket_timeout"] == 30


def test_no_password_of_a_sentinel_is_told_while_it_is_away(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As redis-py 6 and 7 have it: there a client is shown with the options of its connections."""
    monkeypatch.setattr(ConnectionPool, "__repr__", lambda pool: repr(pool.connection_kwargs))
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        sentinels = [server.getsockname()]
        options = {"SENTINELS": sentinels, "MASTER_NAME": "one", "DB": 0, "SENTINEL_KWARGS": {"password": "s3cret"}}
        with override_settings(RQ_QUEUES={**settings.RQ_QUEUES, "imports": options}):
            jobs.fail.enqueue("acme")
            sweep_now()
            _, found = doctor()
            pool: Any = queue_directory.queue_named("imports").connection.connection_pool
            with pytest.raises(redis.ConnectionError) as raised:
                pool.sentinel_manager.discover_master("one")
    redis_servers.forget_absences()
    assert "s3cret" not in found + caplog.text
    for told in (found, caplog.text):
        assert redis_servers.NO_MASTER in told
    assert "s3cret" in str(raised.value), "the control: redis-py does tell it"


def test_nor_by_a_worker_that_waits_at_rqs_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """RQ logs the error."""
    monkeypatch.setattr(ConnectionPool, "__repr__", lambda pool: repr(pool.connection_kwargs))
    monkeypatch.setattr(fair_order, "take", lambda *_, **__: (None, []))  # as when nobody has a turn
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        sentinel = Sentinel([server.getsockname()], sentinel_kwargs={"password": "s3cret"})
        queue = Queue("imports", connection=sentinel.master_for("one"))
        worker: Any = TenantSimpleWorker([queue], connection=queue.connection, prepare_for_work=False)
        worker.show_presence = lambda: None
        with pytest.raises(redis.ConnectionError) as raised:
            worker.queue_class.dequeue_any([queue], None, connection=queue.connection)
    redis_servers.forget_absences()
    assert str(raised.value) == redis_servers.NO_MASTER


def test_nor_by_a_worker_that_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has registered itself by then, and makes the connection on which it is to wait."""
    monkeypatch.setattr(ConnectionPool, "__repr__", lambda pool: repr(pool.connection_kwargs))
    monkeypatch.setattr(BaseWorker, "bootstrap", lambda *_: None)
    monkeypatch.setattr(TenantSimpleWorker, "_install_signal_handlers", lambda _: None)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        sentinel = Sentinel([server.getsockname()], sentinel_kwargs={"password": "s3cret"})
        queue = Queue("imports", connection=sentinel.master_for("one"))
        worker: Any = TenantSimpleWorker([queue], connection=queue.connection, prepare_for_work=False)
        with pytest.raises(redis.ConnectionError) as raised:
            worker.bootstrap()
    assert str(raised.value) == redis_servers.NO_MASTER


def test_nor_by_the_thread_in_which_a_worker_waits_for_commands(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    replace_sleep(monkeypatch, lambda seconds: None)
    worker: Any = TenantSimpleWorker([queue_directory.queue_named("imports")], prepare_for_work=False)
    worker._pubsub_exception_handler(MasterNotFoundError("password=s3cret"), None, None)
    worker._pubsub_exception_handler(redis.ConnectionError("Connection refused"), None, None)
    assert redis_servers.NO_MASTER in caplog.text
    assert "Connection refused" in caplog.text
    assert "s3cret" not in caplog.text


def test_the_connection_to_a_unix_socket_is_bounded_too() -> None:
    theirs = redis.Redis(unix_socket_path="/nowhere/redis.sock")
    with pytest.raises(redis.ConnectionError):
        redis_servers.impatient(theirs).ping()


@pytest.mark.parametrize("error", redis_servers.NO_ADDRESS)
def test_an_option_that_the_socket_module_cannot_use_counts_as_an_absence(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise error("'str' object has no attribute 'items'")

    monkeypatch.setattr("redis.connection.Connection._connect", refuse)
    own = redis_servers.impatient(redis.Redis(host="unusable"))
    for _ in range(2):
        with pytest.raises(redis.ConnectionError, match=error.__name__), redis_servers.asked(own):
            own.ping()
    redis_servers.forget_absences()


def test_services_of_one_sentinel_are_different_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have a name each, and no address: the workers of only one of them were counted."""
    queues = {
        "first": {"SENTINELS": [("127.0.0.1", 26379)], "MASTER_NAME": "one"},
        "again": {"SENTINELS": [("127.0.0.1", 26379)], "MASTER_NAME": "one"},
        "second": {"SENTINELS": [("127.0.0.1", 26379)], "MASTER_NAME": "two"},
        "elsewhere": {"SENTINELS": [("127.0.0.1", 26380)], "MASTER_NAME": "one"},
    }
    monkeypatch.setattr("django_rq.settings.QUEUES", queues)
    with override_settings(RQ_QUEUES=queues):
        assert list(queue_directory.by_server(list(queues))) == ["first", "second", "elsewhere"]


@contextmanager
def only_imports(away: str) -> Iterator[None]:
    """The queues are on two servers: that of `imports` is away."""
    with override_settings(RQ_QUEUES={**settings.RQ_QUEUES, "imports": {"URL": away}}):
        yield


def lost_in_redis(queue: str) -> TenantJob:
    job = waiting_job(tenant_queue(queue=queue), state=State.QUEUED, attempt=1)
    TenantQueue.objects.filter(queue=queue).update(current_job=1)
    age(job, admitted_at=60)
    return job


def test_jobs_that_one_server_lost_are_pushed_again_while_another_is_away(address: str, attempts: list[Any]) -> None:
    lost_in_redis("imports")
    lost_in_redis("reports")
    with only_imports(address):
        attempts.clear()
        assert sweep_now().repushed == 1
        assert in_rq("reports") == 1
        assert sum(connection.port == port_of(address) for connection in attempts) in (1, 2), "it is asked once"
        code, output = doctor("--fix")
    assert code == 1
    assert "redis: queue 'imports': its Redis cannot be asked" in output, (
        "jobs that may be lost there must not look well"
    )
    assert "(repaired)" not in output


def test_a_server_that_fails_between_look_and_push_leaves_out_its_own_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    lost_in_redis("imports")
    lost_in_redis("reports")
    push = dispatch._push_fresh

    def failing(name: str, jobs: list[TenantJob]) -> None:
        if name == "imports":
            raise redis.ConnectionError
        push(name, jobs)

    monkeypatch.setattr(dispatch, "_push_fresh", failing)
    assert sweep_now().repushed == 1
    assert in_rq("reports") == 1


def test_a_stock_workers_job_is_judged_by_its_own_server_while_another_is_away(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, here = (
        running_job(tenant_queue(queue=queue), owner("stock", host="elsewhere", beats=False))
        for queue in ("imports", "reports")
    )
    for job in (there, here):
        age(job, beat_at=60)
    monkeypatch.setattr(steps, "ABSENCE_SECONDS", 0)
    with only_imports(address):
        assert sweep_now().reclaimed == 1
    assert fresh(here).interruptions == 1
    assert (fresh(there).state, there.interruptions) == (State.RUNNING, 0), "nobody knows anything of its worker"


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2].partition("/")[0])


def test_what_a_server_that_was_away_did_not_hear_of_is_offered_by_the_next_sweep(address: str) -> None:
    row = TenantQueue.objects.create(tenant="acme", queue="imports", max_job=5)
    with django_on_redis(address):
        jobs.fail.enqueue_many([(("acme",), {})] * 5)
    assert [found for found, _ in findings.stranded()] == ["imports"]
    assert sweep_now().admitted == 5
    row.refresh_from_db()
    assert (row.current_job, in_rq()) == (5, 5)
