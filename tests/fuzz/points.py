"""Where an actor may stand still: before each request to Redis and to PostgreSQL."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import psycopg
import pytest
import redis.connection

from tests.fuzz.baton import actor_here

LEFT_OUT = re.compile(rb"rq:worker(?!.*rq:(job|queue|scheduled|wip))|CLIENT|HELLO", re.DOTALL)
"""What a worker says of itself alone, or a connection of itself. It is half of all requests, and changes no race."""

TOLD_OF = ("tenant_slots", "rq", "tests")
"""Folders whose code is named as the place."""

NO_PLACES = ("points.py", "redis_servers.py", "compiled.py", "transactions.py")
"""Files through which all requests go."""

MOST_TOLD = 400
"""Characters of a request in the log."""

IS_LOCKED_OUT = "SELECT EXISTS (SELECT FROM pg_locks WHERE pid = %s AND NOT granted)"


@contextmanager
def points() -> Iterator[None]:
    """Each request of an actor is a step of it, and so is each of its pauses."""
    with pytest.MonkeyPatch.context() as patch:
        wait = psycopg.Connection.wait
        send: Any = redis.connection.Connection.send_packed_command

        def before_sql(connection: Any, *args: Any, **kwargs: Any) -> Any:
            if actor := actor_here():
                actor.session = connection.pgconn.backend_pid
                actor.step(f"asks the database in {_place()}")
            return wait(connection, *args, **kwargs)

        def before_commands(connection: Any, command: Any, *args: Any, **kwargs: Any) -> Any:
            if (actor := actor_here()) and not LEFT_OUT.search(_text(command)):
                actor.step(f"tells Redis {_words(command)} in {_place()}")
            return send(connection, command, *args, **kwargs)

        sleep = time.sleep

        def rest(seconds: float) -> None:
            if actor := actor_here():
                actor.rest()
            else:
                sleep(seconds)

        patch.setattr(psycopg.Connection, "wait", before_sql)
        patch.setattr(redis.connection.Connection, "send_packed_command", before_commands)
        patch.setattr(time, "sleep", rest)
        yield


def _text(command: Any) -> bytes:
    return command if isinstance(command, bytes) else b"".join(command)


def _words(command: Any) -> str:
    """Without what Redis is told of their number and lengths."""
    words = [word for word in _text(command).split(b"\r\n") if word[:1] not in (b"*", b"$")]
    return b" ".join(words)[:MOST_TOLD].decode(errors="replace")


def _place() -> str:
    """The line of ours, of RQ's or of the tests that has led here."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if not {*TOLD_OF}.isdisjoint(path.parts) and path.name not in NO_PLACES:
            return f"{path.stem}.{frame.f_code.co_name}:{frame.f_lineno}"
        frame = frame.f_back
    return "a library"


@contextmanager
def watching_locks(options: Mapping[str, Any]) -> Iterator[Callable[[int], bool]]:
    """Whether a session of the database waits for a lock, by the number of its process.

    Args:
        options: of the connection to the database, as Django has them.
    """
    own = {name: options[name] for name in ("dbname", "user", "password", "host", "port") if name in options}
    with psycopg.connect(**own, autocommit=True) as session:

        def is_locked_out(pid: int) -> bool:
            found = session.execute(IS_LOCKED_OUT, [pid]).fetchone()
            return bool(found and found[0])

        yield is_locked_out
