"""A server that notes what real workers send to Sentry."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.contrib.traces import ONLY_SENTRY
from tests.processes import Workers


class SentryServer(ThreadingHTTPServer):
    """Notes what Sentry's own transport sends it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), TellsSentry)
        self.dsn = f"http://key@127.0.0.1:{self.server_port}/1"
        self.told: list[Any] = []
        self.answers = threading.Event()
        self.answers.set()

    def of(self, kind: str) -> list[Any]:
        return [one["transaction"] for one in self.told if one.get("type", "event") == kind and "transaction" in one]

    def errors(self) -> list[str]:
        """The class of each error that it was told of, or the logger of one that was only logged."""
        told = [one for one in self.told if one.get("level") == "error"]
        return [one["exception"]["values"][-1]["type"] if "exception" in one else one["logger"] for one in told]

    def logs(self) -> list[str]:
        return [one["body"] for told in self.told if "items" in told for one in told["items"]]


class TellsSentry(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        lines = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
        server: Any = self.server
        server.told.extend(json.loads(line) for line in lines.splitlines())
        server.answers.wait(60)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def sentry_server(workers: Workers) -> Iterator[SentryServer]:
    """Workers send to it, and have Sentry from their start on, as one that a project has in its settings."""
    with SentryServer() as server:
        workers.variables |= {"SENTRY_DSN": server.dsn, "TEST_TENANT_SLOTS": json.dumps(ONLY_SENTRY)}
        workers.variables["TEST_EXCEPTION_HANDLERS"] = "tests.contrib.jobs.leaves_it_to_rq"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()
