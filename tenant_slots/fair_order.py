"""In which order tenants meet a worker: by the worker time that each of them has had.

For each RQ queue Redis keeps the tenants that may have something to run, by virtual time: the seconds for which workers
have run their jobs, divided by their share. Who is first is next. It is charged the mean run time of its jobs at once,
and when the job ends the charge is set right; what runs for long is charged by the sweep while it runs. A tenant that
comes back stands where the queue is by then, so that nobody saves up time (start-time fair queueing).

This is a hint. The database says who has a waiting job and a free slot: a tenant that turns out to have none leaves the
order, unless it was offered again meanwhile, and comes back with its next enqueue, release or change of a limit. One
that may start none of its jobs comes back with a release or a change alone: whoever enqueued for it would cost the
others a turn each time. All of it may be lost; the sweep offers again who has something to run.

Workers of ours take their turn themselves. Any other worker takes what is in RQ's list, so that one job, and one for
each worker that is known to be idle, is admitted ahead of it: the *window*. A turn has its place there as soon as it is
given, and until its jobs are pushed. Who finds no room because of it leaves: the feeder that has it asks once more
afterwards. One that was lost with its feeder is over after a second.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from secrets import randbelow, token_hex
from typing import Any, NamedTuple

from redis import Redis
from redis.exceptions import NoScriptError, ResponseError

from tenant_slots import queue_directory
from tenant_slots.conf import app_settings

logger = logging.getLogger("tenant_slots")

KNOWN = "tenant_slots:known"

TYPES = {
    **dict.fromkeys(("order", "idle", "workers", "watch", "wake"), b"zset"),
    **dict.fromkeys(("busy", "brought"), b"set"),
}
"""Of what the script keeps for each queue, by the first part of its key's name."""

SECONDS_ALIVE = 15
"""For which a worker of ours counts as there, and as idle, after it was last heard of: it looks every few seconds."""

SECONDS_LATE = 10
"""By which a worker may look later than it wanted to: a sweep that has become due goes first."""

TENANTS_PER_CALL = 1000
"""Most tenants in one run of the script: Redis serves nobody else meanwhile."""

SHUT = 2
"""As in the script."""

HIGHEST_MARK = 2**32 - 1
"""Of four bytes, where 0 is none."""

NOTHING_RAN = -1
"""In place of seconds: the job had been charged, and never ran."""

NOTHING_CHARGED = -2
"""In place of seconds: what became free was no job's."""


class Turn(NamedTuple):
    """A tenant's turn in one queue."""

    rq_queue: str
    tenant_queue_id: int
    jobs: int
    """How many of its jobs may be admitted now. It has been charged for these."""
    offers: int
    """How often it had been offered by then: what has been offered since is not forgotten."""
    frees: int = 0
    """How often because it might do more than before."""
    stays_first: bool = False
    """Whether it would be next once more, as things are."""
    is_out: bool = False
    """Whether it has no place in the order: it was full when it had its turn before, or nothing more waited there."""
    for_nobody: bool = False
    """Whether no worker listens there: whoever comes is to find a job ahead."""
    feeder: str = ""
    """Who is to push its jobs, see `new_feeder`; nobody where a worker runs it itself."""


def new_mark() -> int:
    """Of what is charged once, however often it is said: by a client whose answer was lost, or by who asks again."""
    return randbelow(HIGHEST_MARK) + 1


@dataclass(frozen=True)
class Freed:
    """A tenant has a free slot, or may have."""

    tenant_queue_id: int
    seconds: float
    """What its job took, or `NOTHING_RAN`, or `NOTHING_CHARGED`."""
    rq_queue: str
    """Of that job, else the tenant queue's."""
    is_over: bool = False
    """The job has ended for good. What else its tenant has to run there is offered by whoever stores it."""
    mark: int = field(default_factory=new_mark, compare=False)


Next = Turn | str | float | None
"""The turn of a tenant; or the name of a queue in whose list a job waits; or the seconds after which a tenant may start
a job that may not now; or nothing."""


def offer(rq_queue: str, tenants: Iterable[tuple[int, int]]) -> bool:
    """These tenants, if any, have one job more to run in a queue. Returns whether the window has room.

    Args:
        rq_queue: its name.
        tenants: primary key of the tenant queue and its share, 0 where it is not at hand. That is taken where none is
            known: a change of it may have been told since it was read.

    Raises:
        RedisError: the sweep will offer them.
    """
    room = 0
    flat = [number for tenant in tenants for number in tenant]
    for start in range(0, max(1, len(flat)), 2 * TENANTS_PER_CALL):
        room = _ask(rq_queue, "offer", rq_queue, *flat[start : start + 2 * TENANTS_PER_CALL])
    return room > 0


def tell_share(rq_queue: str, tenants: Iterable[tuple[int, int]]) -> None:
    """The shares of tenants that have been changed, for those that a queue on the server of this one knows.

    Their next enqueue gives them a turn again, see `drop`. Arguments as of `offer`.
    """
    _ask(rq_queue, "share", *(number for tenant in tenants for number in tenant))


def other_shares(rq_queue: str, tenants: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Those of the tenants whose time is divided by another share: primary key and that share, 0 where none is known.

    Arguments as of `offer`, for all queues on the server of this one.
    """
    for start in range(0, len(tenants), TENANTS_PER_CALL):
        some = tenants[start : start + TENANTS_PER_CALL]
        flat = iter(_ask(rq_queue, "other_shares", *(number for tenant in some for number in tenant)))
        yield from ((int(pk), int(share)) for pk, share in zip(flat, flat, strict=True))


def correct_shares(rq_queue: str, tenants: Sequence[tuple[int, int, int]]) -> None:
    """Primary key, what `other_shares` has found, and the share that the database has had since."""
    for start in range(0, len(tenants), TENANTS_PER_CALL):
        some = tenants[start : start + TENANTS_PER_CALL]
        _ask(rq_queue, "correct_shares", *(number for tenant in some for number in tenant))


def freed(slot: Freed) -> list[str]:
    """The tenant is offered wherever it has been full. Returns the queues in whose windows there is room."""
    return _known_names(slot.rq_queue, _ask(slot.rq_queue, "freed", *_flat(slot)))


def freed_elsewhere(tenant_queue_id: int, rq_queue: str) -> list[str]:
    """As `freed`, where a slot was handed on in a queue: the tenant is offered in all others where it has been full.

    Nobody was passed over in that one: its next job was chosen when the end of the last one had been recorded.
    """
    return _known_names(rq_queue, _ask(rq_queue, "freed_elsewhere", tenant_queue_id, rq_queue))


def changed(rq_queue: str, tenants: Iterable[tuple[int, int]]) -> list[str]:
    """What these tenants, if any, may do has changed: each is offered there and wherever it has been full. Returns as
    `freed`.

    Args:
        rq_queue: that of their tenant queues, or one in which they have something to run.
        tenants: as of `offer`.
    """
    rooms: dict[str, None] = {}
    flat = [number for tenant in tenants for number in tenant]
    for start in range(0, max(1, len(flat)), 2 * TENANTS_PER_CALL):
        some = flat[start : start + 2 * TENANTS_PER_CALL]
        rooms |= dict.fromkeys(_known_names(rq_queue, _ask(rq_queue, "changed", rq_queue, *some)))
    return list(rooms)


def new_feeder() -> str:
    """A name for who asks for turns, and has one of them at a time. By it a question is known that a client repeats."""
    return token_hex(4)


def next_turn(rq_queue: str, feeder: str) -> Turn | None:
    """Who is to be admitted into the window; None when that is full, or nobody has anything to run."""
    turn = _turn(_ask(rq_queue, "next", rq_queue, feeder))
    return turn and turn._replace(feeder=feeder)


def take(
    worker: str, rq_queues: list[str], *, waits: bool, is_news: bool = True, slot: Freed | None = None
) -> tuple[Next, list[str]]:
    """What a worker of ours is to do now, and the other queues in which there is room for the tenant of the free slot.

    Args:
        worker: RQ's key of it.
        rq_queues: where it looks, in this order.
        waits: whether it waits at RQ's lists if there is nothing; who enqueues then pushes to these.
        is_news: whether it has not said for a while that it is there, or has waited.
        slot: one that it has freed before; as of `freed`.
    """
    before = (worker, _seconds_alive(), int(is_news), int(waits), *(_flat(slot) if slot else [""] * 5))
    answer, rooms = _ask(rq_queues[0], "take", *before, *rq_queues)
    return _next(answer), _known_names(rq_queues[0], rooms)


def again(slot: Freed) -> Turn | None:
    """A job has ended, and its slot is not free yet: the turn of the same tenant, if it is the next one again.

    What the job took is charged. If the answer is None its tenant is still to be offered, see `freed`, with
    `NOTHING_CHARGED`.
    """
    return _turn(_ask(slot.rq_queue, "again", *_flat(slot)))


def begin(rq_queue: str, tenant_queue_id: int, share: int, *, waits: bool) -> Turn | None:
    """A worker has taken a plain RQ job from a queue's list, and it turns out to be this tenant's: the turn for it.

    None where others are to go first who wait for a worker, of its own tenant too.

    Args:
        rq_queue, tenant_queue_id, share: as of `offer`.
        waits: whether the job waits then. One that does not is charged all the same.
    """
    return _turn(_ask(rq_queue, "begin", rq_queue, tenant_queue_id, share, int(waits)))


def show_presence(worker: str, rq_queues: list[str]) -> None:
    """The worker is there, and runs a job."""
    _ask(rq_queues[0], "here", worker, _seconds_alive(), *rq_queues)


def _seconds_alive() -> float:
    """Longer where it waits for longer."""
    return max(SECONDS_ALIVE, app_settings.SWEEP_INTERVAL + SECONDS_LATE)


def leave(worker: str, rq_queues: list[str], *, is_over: bool = False, looks: bool = False) -> None:
    """The worker waits no more; or `is_over`: it will look no more; or it `looks` at once who is next."""
    _ask(rq_queues[0], "leave", worker, int(is_over), int(looks), *rq_queues)


def drop(turn: Turn, admitted: int = 0, *, is_full: bool, is_shut: bool = False, wakes_in: float | None = None) -> bool:
    """The tenant has nothing more to run there: its backlog is empty, or it `is_full`, or is to wait some seconds.

    Where it `is_shut` no enqueue gives it a turn, only what lets it do more than before. Returns whether a slot has
    become free since, and the window has room.
    """
    wait = -1 if wakes_in is None else wakes_in
    unused = turn.jobs - admitted
    parked = SHUT if is_shut else int(is_full)
    asked = ("drop", turn.rq_queue, turn.tenant_queue_id, unused, turn.offers, turn.frees, parked, wait)
    return bool(_ask(turn.rq_queue, *asked, turn.feeder, admitted))


def undo(turn: Turn, admitted: int = 0) -> None:
    """Nobody could be asked whether it has anything to run, or what it has needs no worker but for those `admitted`."""
    _ask(turn.rq_queue, "undo", turn.rq_queue, turn.tenant_queue_id, turn.jobs - admitted, turn.feeder, admitted)


def give_up(rq_queue: str, feeder: str) -> None:
    """A feeder ends in the midst of its turn: a worker that waits is to look."""
    _ask(rq_queue, "give_up", rq_queue, feeder)


def heads(rq_queue: str) -> list[int]:
    """The first tenants, but for those that were passed over: primary keys of at most a thousand."""
    return [int(pk) for pk in _ask(rq_queue, "heads", rq_queue)]


def pass_over(rq_queue: str, tenant_queue_ids: Iterable[int], *, in_lane: bool) -> None:
    """These stand behind all others until somebody listens to the queue, or else until the next sweep.

    Args:
        rq_queue: its name.
        tenant_queue_ids: primary keys.
        in_lane: their own queue is another one, which no sweep will change.
    """
    _ask(rq_queue, "pass_over", rq_queue, int(in_lane), *tenant_queue_ids)


def cost(rq_queue: str, tenant_queue_id: int, seconds: float) -> None:
    """A worker has spent so many seconds on a tenant beyond the run of a job, as on receivers of its end."""
    _ask(rq_queue, "cost", rq_queue, tenant_queue_id, seconds, new_mark())


def listens(rq_queue: str) -> bool:
    """Whether any worker is there for a queue, of ours or of RQ's, as far as one knows."""
    return bool(_ask(rq_queue, "listens", rq_queue))


def excess(rq_queue: str) -> tuple[int, int]:
    """How many jobs more than the window has room for are admitted there, and how many workers are idle."""
    more, idle = _ask(rq_queue, "excess", rq_queue)
    return int(more), int(idle)


def forget(rq_queue: str, tenant_queue_id: int) -> None:
    """The tenant queue was deleted: nothing stays of it on the server of this queue."""
    _ask(rq_queue, "forget", tenant_queue_id)


def under_way(rq_queue: str) -> list[bytes]:
    """What is known of jobs under way, for `charge`. It is asked before the database is."""
    seen: list[bytes] = _ask(rq_queue, "under_way", rq_queue)
    return seen


def charge(
    rq_queue: str,
    running: Iterable[tuple[int, int, float]],
    plain: Collection[str] = (),
    seen: Collection[bytes] | None = None,
    shares: Mapping[int, int] | None = None,
) -> None:
    """Charge tenants for what runs.

    Args:
        rq_queue: its name.
        running: primary key, number of jobs, and the seconds that these have taken so far.
        plain: the ids of those plain RQ jobs that are admitted and have not started.
        seen: what `under_way` said before `running` was read. Jobs that have started or ended since count as they are
            now. None: it was read at this moment.
        shares: of these tenants, by primary key, for those that are not known here, as after a FLUSHALL.
    """
    seen = under_way(rq_queue) if seen is None else seen
    of_tenants = [number for share in (shares or {}).items() for number in share]
    before = (_seconds_alive(), len(plain), len(seen), len(of_tenants), *plain, *seen, *of_tenants)
    _ask(rq_queue, "charge", rq_queue, *before, *(number for tenant in running for number in tenant))


def bring_before_plain_jobs(rq_queue: str, rq_ids: Iterable[str], feeder: str = "") -> None:
    """Tenants' jobs and plain ones take turns: each of these goes behind the first plain one that another follows.

    They are pushed by now: the turn of their `feeder` keeps no place in the window any more.
    """
    _ask(rq_queue, "bring", rq_queue, feeder, *rq_ids)


def known(rq_queue: str, tenant_queue_ids: Sequence[int]) -> Iterator[int]:
    """Those of the tenants that stand in the order.

    Raises:
        RedisError: on the first one that is asked for.
    """
    for start in range(0, len(tenant_queue_ids), TENANTS_PER_CALL):
        some = tenant_queue_ids[start : start + TENANTS_PER_CALL]
        with queue_directory.reaching(rq_queue) as queue:
            scores = queue.connection.zmscore(f"tenant_slots:order:{rq_queue}", [str(pk) for pk in some])
        yield from (pk for pk, score in zip(some, scores, strict=True) if score is not None)


def unknown(rq_queue: str, tenant_queue_ids: Sequence[int]) -> Iterator[int]:
    """Those of the tenants that neither stand in the order nor have left it because they were full: a slot of theirs
    that becomes free in another queue leads to no turn in this one.

    Raises:
        RedisError: on the first one that is asked for.
    """
    for start in range(0, len(tenant_queue_ids), TENANTS_PER_CALL):
        some = tenant_queue_ids[start : start + TENANTS_PER_CALL]
        yield from (int(pk) for pk in _ask(rq_queue, "unknown", rq_queue, *some))


def tenants_in(rq_queue: str) -> int:
    """How many tenants stand in the order. Raises as `queue_directory.reaching`."""
    with queue_directory.reaching(rq_queue) as queue:
        return int(queue.connection.zcard(f"tenant_slots:order:{rq_queue}"))


def _flat(slot: Freed) -> tuple[Any, ...]:
    return slot.tenant_queue_id, slot.seconds, slot.mark, slot.rq_queue, int(slot.is_over)


def _next(answer: Any) -> Next:
    if answer and len(answer) == 1:
        return str(answer[0].decode())
    return float(answer[1]) if answer and not answer[0] else _turn(answer)


def _turn(answer: Any) -> Turn | None:
    if not answer:
        return None
    rq_queue, tenant_queue_id, jobs, offers, frees, stays_first, is_out, *for_nobody = answer
    numbers = int(tenant_queue_id), int(jobs), int(offers), int(frees)
    return Turn(rq_queue.decode(), *numbers, bool(stays_first), bool(is_out), bool(for_nobody))


def _known_names(rq_queue: str, names: list[bytes]) -> list[str]:
    """Without the queues that the project has had, and what never was the name of one."""
    known = queue_directory.queues_beside(rq_queue)
    return [name for name in (raw.decode(errors="replace") for raw in names) if name in known]


def _ask(rq_queue: str, *arguments: Any) -> Any:
    """By the command itself: redis-py 8 looks each time whether its client is an asynchronous one, which takes time."""
    with queue_directory.reaching(rq_queue) as queue:
        try:
            return _send(queue.connection, arguments)
        except ResponseError as error:
            if "WRONGTYPE" not in str(error) or not _forget_misused(rq_queue, queue.connection):
                raise
            return _send(queue.connection, arguments)


def _send(connection: Redis, arguments: tuple[Any, ...]) -> Any:
    script = _script()
    try:
        return connection.execute_command("EVALSHA", script.sha, 0, *arguments)  # type: ignore[no-untyped-call]
    except NoScriptError:
        return script(args=arguments, client=connection)


def _forget_misused(rq_queue: str, connection: Redis) -> bool:
    """Delete what somebody else has put in the place of a part of the order, which fails every question until then.

    False where there is none, so that it is a key of RQ's.
    """
    names = queue_directory.queues_beside(rq_queue)
    types = {f"tenant_slots:{part}:{name}": kind for name in names for part, kind in TYPES.items()} | {KNOWN: b"hash"}
    with connection.pipeline(transaction=False) as pipeline:
        for key in types:
            pipeline.type(key)
        found = pipeline.execute()
    misused = [key for key, kind in zip(types, found, strict=True) if kind not in (types[key], b"none")]
    if misused:
        connection.delete(*misused)
        logger.warning("what was in the place of the order of tenants is deleted from Redis: %s", ", ".join(misused))
    return bool(misused)


@cache
def _script() -> Any:
    """One for all servers: it is sent to a server that does not know it."""
    return Redis().register_script(files("tenant_slots").joinpath("fair_order.lua").read_text())
