"""The example's pages and jobs have their own settings, so their tests run in a pytest of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
SITE = Path(__file__).parent / "site"


def database_url(vendor: str, directory: Path) -> str:
    if vendor == "sqlite":
        return f"sqlite:///{directory}/example.sqlite3"
    url = urlsplit(os.environ["DATABASE_URL"])
    if not url.scheme.startswith("postgres"):
        pytest.skip("this run is on SQLite")
    return f"{url.scheme}://{url.netloc}/example{f'?{url.query}' if url.query else ''}"


@pytest.mark.parametrize("vendor", ["sqlite", "postgresql"])
def test_the_example_site_works(vendor: str, tmp_path: Path) -> None:
    environment = {**os.environ, "DATABASE_URL": database_url(vendor, tmp_path), "MEDIA_ROOT": str(tmp_path)}
    environment.pop("DJANGO_SETTINGS_MODULE", None)
    command = [sys.executable, "-m", "pytest", "--ds=example_project.settings", f"--confcutdir={SITE}"]
    run = subprocess.run(
        [*command, "-q", "-p", "no:cacheprovider", *map(str, sorted(SITE.glob("check_*.py")))],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stdout + run.stderr
