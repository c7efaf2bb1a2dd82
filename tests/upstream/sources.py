"""Brings the tests of the Django that is installed: ``python -m tests.upstream.sources DIRECTORY``

No wheel has them; the source distribution of the same version has. Django 5.2 has no Tasks, and no distribution of the
backport has its tests: those of Django 6.0, which were made from them, stand in.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import django


def fetch(directory: Path) -> None:
    """As ``django`` in the directory."""
    downloads = directory / "downloads"
    options = ["--quiet", "--no-deps", "--no-binary", ":all:", "--ignore-requires-python", "--dest", str(downloads)]
    version = django.__version__ if django.VERSION >= (6, 0) else "6.0.*"
    subprocess.run([sys.executable, "-m", "pip", "download", *options, f"Django=={version}"], check=True)
    (archive,) = downloads.glob("*.tar.gz")
    with tarfile.open(archive) as source:
        (top,) = {name.split("/")[0] for name in source.getnames()}
        source.extractall(downloads, filter="data")
    (downloads / top).rename(directory / "django")


if __name__ == "__main__":
    fetch(Path(sys.argv[1]))
