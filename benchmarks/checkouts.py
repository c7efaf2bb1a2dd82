"""Another checkout of this project, measured by this one's benchmarks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.phase import ROOT


@contextmanager
def benchmarks_with(checkout: Path) -> Iterator[Path]:
    """A directory with these benchmarks and the package of another checkout."""
    package = checkout.resolve() / "tenant_slots"
    if not package.is_dir():
        raise SystemExit(f"There is no directory {package}: --other is the path of a checkout.")
    with tempfile.TemporaryDirectory(prefix="tenant_slots_bench_") as name:
        directory = Path(name)
        (directory / "tenant_slots").symlink_to(package)
        for shared in ("benchmarks", "tests"):
            (directory / shared).symlink_to(ROOT / shared)
        shutil.copy(ROOT / "manage.py", directory)  # Python looks beside what a link to a script leads to
        yield directory


def result_in(root: Path, benchmark: str, sizes: Mapping[str, object], worker_class: str) -> dict[str, Any]:
    """What a benchmark prints as JSON, run in a process of its own, whether or not it reaches its bars.

    Args:
        root: the directory of a checkout, or of `benchmarks_with`.
    """
    command = [sys.executable, "-W", "ignore", "-m", f"benchmarks.{benchmark}", "--json"]
    command += [f"--{name}={value}" for name, value in sizes.items()]
    command += ["--worker-class", worker_class]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    if not done.stdout:
        raise SystemExit(f"The benchmark failed in {root}:\n{done.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(done.stdout)["results"][0]
    return result
