"""The how-to about tests works as it is written, with a database and nothing else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.processes import ROOT

PAGE = (ROOT / "docs/how-to/testing.md").read_text()

SETTINGS = """
from tests.settings import *
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
RQ_QUEUES = {name: {"URL": "redis://127.0.0.1:1/0"} for name in RQ_QUEUES}
INSTALLED_APPS = [*INSTALLED_APPS, "feeds"]
ROOT_URLCONF = "feeds.urls"
"""

URLS = """
from django.urls import path
from feeds.views import upload
urlpatterns = [path("upload/", upload)]
"""


def test_its_examples_pass(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    jobs, views = (next(block for block in blocks if f"# feeds/{name}.py" in block) for name in ("jobs", "views"))
    tests = [block for block in blocks if "(TestCase)" in block]
    files = {
        "__init__": "",
        "jobs": jobs,
        "views": views,
        "urls": URLS,
        "settings": SETTINGS,
        "tests": "\n".join(tests),
    }
    for name, text in files.items():
        (tmp_path / "feeds").mkdir(exist_ok=True)
        (tmp_path / f"feeds/{name}.py").write_text(text)
    (tmp_path / "three-rows.csv").write_text("1\n2\n3\n")
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "django", "test", "feeds", "--settings", "feeds.settings"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "Ran 3 tests" in ran.stderr
    assert "Redis" not in ran.stderr
