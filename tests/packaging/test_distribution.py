"""What is uploaded: the wheel, installed alone in an environment of its own, in a project that has nothing else."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import venv
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.databases import another_database

SITE = Path(__file__).parent / "site"

IMPORT_ALL = """
import importlib, pkgutil, sys, django
django.setup()
import tenant_slots
from tenant_slots.exceptions import TasksNotInstalled
for module in pkgutil.walk_packages(tenant_slots.__path__, "tenant_slots."):
    try:
        importlib.import_module(module.name)
    except TasksNotInstalled:
        print(module.name, "django_tasks")
    except ModuleNotFoundError as error:
        print(module.name, error.name)
"""
"""Names those that cannot be, each with what it lacks."""

LACKS = {
    "tenant_slots.contrib.opentelemetry": "opentelemetry",
    "tenant_slots.contrib.prometheus": "prometheus_client",
    "tenant_slots.contrib.schemas": "django_tenants",
    "tenant_slots.contrib.sentry": "sentry_sdk",
    "tenant_slots.pytest_plugin": "pytest",
}
"""What only those use who have it, by an extra or otherwise. So it is with Django's Tasks before Django 6."""

TABLES = """
import django
django.setup()
from django.db import connection
print([name for name in connection.introspection.table_names() if name.startswith("tenant_slots")])
"""

ENQUEUE = """
import django
django.setup()
from shop.jobs import import_feed
print(import_feed.enqueue("acme").state)
"""

RESULTS = """
import django
django.setup()
from tenant_slots.models import TenantJob
print(list(TenantJob.objects.values_list("state", "result")))
"""


@pytest.fixture(scope="session", params=["sqlite", "postgres"])
def installed(request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the wheel alone, or with its extra for PostgreSQL."""
    directory = tmp_path_factory.mktemp(request.param)
    venv.create(directory, with_pip=True)
    extra = "[postgres]" if request.param == "postgres" else ""
    python = directory / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", f"{wheel}{extra}"], check=True, cwd=directory)
    return python


@pytest.fixture
def database(installed: Path) -> Iterator[dict[str, str]]:
    """The environment variables that name it."""
    if "sqlite" in installed.parts[-3]:
        yield {}
        return
    with another_database("packaging") as url:
        parts = conninfo_to_dict(url)
        names = {"PGDATABASE": "dbname", "PGHOST": "host", "PGPORT": "port", "PGUSER": "user", "PGPASSWORD": "password"}
        yield {name: str(parts[part]) for name, part in names.items() if parts.get(part)}


@pytest.fixture
def run(installed: Path, database: dict[str, str], tmp_path: Path) -> Callable[..., str]:
    """Runs Python in the project; gives what it printed. Any error or warning fails the test."""
    project = shutil.copytree(SITE, tmp_path / "site")
    environment = {"PATH": os.environ["PATH"], "REDIS_URL": os.environ["REDIS_URL"], **database}

    def run(*arguments: str) -> str:
        command = [str(installed), "-W", "error::RuntimeWarning", *arguments]
        done = subprocess.run(
            command,
            cwd=project,
            env={**environment, "DJANGO_SETTINGS_MODULE": "settings"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def test_every_module_can_be_imported_but_those_for_what_is_not_there(run: Callable[..., str]) -> None:
    missing = dict(line.split() for line in run("-c", IMPORT_ALL).splitlines())
    assert {name: lacks for name, lacks in missing.items() if lacks != "django_tasks"} == LACKS
    of_tasks = {name for name, lacks in missing.items() if lacks == "django_tasks"}
    assert all("task" in name for name in of_tasks), of_tasks


def test_its_commands_run_and_a_job_does(run: Callable[..., str]) -> None:
    assert "no issues" in run("manage.py", "check", "--fail-level", "WARNING")
    run("manage.py", "migrate")
    assert "No changes" in run("manage.py", "makemigrations", "--check", "--dry-run")
    run("manage.py", "slots_limit", "acme", "imports", "5")
    assert "waiting" in run("-c", ENQUEUE)
    run("manage.py", "slots_sweep")
    run("manage.py", "rqworker", "imports", "--burst")
    assert "('finished', 'imported for acme')" in run("-c", RESULTS)
    assert "acme" in run("manage.py", "slots_status")
    run("manage.py", "slots_doctor", "--check", "counters,rows,redis")


def test_an_older_table_is_migrated_with_its_rows_and_all_of_it_goes_again(run: Callable[..., str]) -> None:
    run("manage.py", "migrate")
    run("manage.py", "migrate", "tenant_slots", "0001")
    run("-c", ENQUEUE)
    run("manage.py", "migrate")
    run("manage.py", "rqworker", "imports", "--burst")
    assert "('finished', 'imported for acme')" in run("-c", RESULTS)
    run("manage.py", "migrate", "tenant_slots", "zero")
    assert run("-c", TABLES).strip() == "[]"
    run("manage.py", "migrate")
    assert "tenant_slots_tenantjob" in run("-c", TABLES)


def test_the_source_distribution_has_the_tests_and_the_manual(tmp_path: Path) -> None:
    (archive,) = Path(os.environ["DIST"]).glob("*.tar.gz")
    shutil.unpack_archive(archive, tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    tests = "tests/packaging/test_distribution.py"
    for path in (tests, "docs/tutorial.md", "docs/conf.py", "tox.ini", "SECURITY.md", ".ci/run"):
        assert (source / path).is_file(), path
    assert not (source / "docs" / "_build").exists(), "a site that was built here is not uploaded"


def test_the_page_of_the_package_index_has_no_link_into_nowhere(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith("METADATA"))
        text = archive.read(metadata).decode()
    links = re.findall(r"\]\(([^)]*)\)", text)
    assert len(links) > 20
    assert [link for link in links if not link.startswith("https://")] == []
