"""Brings the tests of the Django that is installed: ``python -m tests.upstream.sources DIRECTORY``

No wheel has them; the source distribution of the same version has.
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
    options = ["--quiet", "--no-deps", "--no-binary", ":all:", "--dest", str(downloads)]
    subprocess.run([sys.executable, "-m", "pip", "download", *options, f"Django=={django.__version__}"], check=True)
    (archive,) = downloads.glob("*.tar.gz")
    with tarfile.open(archive) as source:
        (top,) = {name.split("/")[0] for name in source.getnames()}
        source.extractall(downloads, filter="data")
    (downloads / top).rename(directory / "django")


if __name__ == "__main__":
    fetch(Path(sys.argv[1]))
