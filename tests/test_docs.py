"""The documentation names everything that users meet, its links lead somewhere, and its code is Python."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from django.core.management import BaseCommand, call_command, load_command_class
from django.dispatch import Signal
from django.test import RequestFactory, override_settings

from tenant_slots import conf, exceptions, signals, tenant_job
from tenant_slots.access import is_allowed
from tenant_slots.contrib.prometheus import TenantSlotsCollector
from tenant_slots.enqueueing.ways import WaysToEnqueue

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = sorted([README, ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
REFERENCE = (ROOT / "docs" / "reference.md").read_text()
METRICS = (ROOT / "docs" / "how-to" / "metrics.md").read_text()
COMMANDS = [
    path.stem
    for path in (ROOT / "tenant_slots" / "management" / "commands").glob("*.py")
    if not path.stem.startswith("_")
]

DEMO_COMMAND = 'python -m pip install -e ".[demo]" && python manage.py demo'
TEST_COMMAND = "python -m pip install tox && tox"

FENCE = re.compile(r"^( *)```(\S*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
"""In a list it is indented."""

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, *languages: str) -> list[str]:
    return [dedent(code) for _, language, code in FENCE.findall(page.read_text()) if language in languages]


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def missing_from_reference(names: set[str]) -> list[str]:
    return sorted(name for name in names if f"`{name}`" not in REFERENCE)


def test_the_reference_names_every_setting_with_its_default_and_no_other() -> None:
    section = REFERENCE.partition("\n## Settings")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `([A-Z_]+)` \|", section, re.MULTILINE)) == conf.known_names()
    for name in conf.known_names():
        default = vars(conf.AppSettings)[name].default
        shown = f'"{default}"' if isinstance(default, str) else str(default)
        row = re.search(rf"^\| `{name}` \|[^|]*\| `(.*?)` \|", REFERENCE, re.MULTILINE)
        assert row, f"docs/reference.md has no row for the setting {name}"
        assert row[1] == shown, f"docs/reference.md gives another default for {name}"


def test_the_reference_names_every_system_check_and_no_other() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "tenant_slots").rglob("*.py"))
    in_code = set(re.findall(r"tenant_slots\.[EW]\d{3}", sources))
    in_reference = set(re.findall(r"tenant_slots\.[EW]\d{3}", REFERENCE))
    assert in_code
    assert in_code == in_reference


@pytest.mark.parametrize("command", COMMANDS)
def test_the_reference_names_every_command_with_its_options(command: str) -> None:
    assert f"### `{command}" in REFERENCE
    section = REFERENCE.partition(f"### `{command}")[2].partition("\n##")[0]
    options = options_of(load_command_class("tenant_slots", command)) - options_of(BaseCommand())
    assert [option for option in sorted(options) if f"`{option}" not in section] == []


def options_of(command: BaseCommand) -> set[str]:
    """As the parser takes them, however and wherever they are added to it."""
    actions = command.create_parser("manage.py", "")._actions
    return {option for action in actions for option in action.option_strings}


def test_the_reference_names_every_signal() -> None:
    names = {name for name, value in vars(signals).items() if isinstance(value, Signal)}
    assert names
    assert missing_from_reference(names) == []


def test_the_page_of_metrics_names_every_one_and_no_other() -> None:
    total = {"counter": "_total"}
    families = TenantSlotsCollector().describe()
    names = {family.name.removeprefix("tenant_slots_") + total.get(family.type, "") for family in families}
    rows = METRICS.partition("\n| metric |")[2].partition("\n\n")[0]
    named = {name for row in rows.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert names
    assert named == names


def test_the_reference_names_every_exception() -> None:
    names = {
        name
        for name, value in vars(exceptions).items()
        if isinstance(value, type) and issubclass(value, exceptions.TenantSlotsError)
    }
    assert names
    assert missing_from_reference(names) == []


def test_the_reference_names_every_option_of_the_decorator_and_of_using() -> None:
    using = set(inspect.signature(WaysToEnqueue.using).parameters) - {"self"}
    options = set(inspect.signature(tenant_job).parameters) | using
    assert [name for name in sorted(options) if f"| `{name}` |" not in REFERENCE] == []


def test_the_readme_has_exactly_the_two_commands() -> None:
    commands = [line for code in blocks(README, "sh", "console", "bash", "") for line in code.splitlines() if line]
    assert commands == [DEMO_COMMAND, TEST_COMMAND]


def test_ci_runs_the_test_command_of_the_readme() -> None:
    assert TEST_COMMAND in (ROOT / ".ci" / "run").read_text().splitlines()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_relative_links_lead_to_a_file_and_a_heading(page: Path) -> None:
    broken = []
    for target in LINK.findall(FENCE.sub("", page.read_text())):
        if "://" in target or target.startswith("mailto:"):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        if not linked.is_file() or (anchor and anchor not in anchors(linked)):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_python_blocks_compile(page: Path) -> None:
    for code in blocks(page, "python", "py"):
        compile(code, name_of(page), "exec")


def test_control_a_block_in_a_list_is_one(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("2. Write it:\n\n   ```python\n   import\n   ```\n\n```python\nx = 1\n```\n")
    assert blocks(page, "python") == ["import\n", "x = 1\n"]


@pytest.mark.parametrize(
    ("page", "name", "setting", "header", "form"),
    [
        ("production.md", "may_view_health", "PROBE_SECRET", "X-Probe", "{}"),
        ("metrics.md", "may_view_metrics", "METRICS_SECRET", "Authorization", "Bearer {}"),
    ],
)
def test_what_opens_a_view_to_a_secret_opens_it_to_nobody_while_there_is_none(
    page: str, name: str, setting: str, header: str, form: str
) -> None:
    """As where the variable of the environment is not set: a header that is missing is empty too."""
    (code,) = (block for block in blocks(ROOT / "docs" / "how-to" / page, "python") if f"def {name}" in block)
    written: dict[str, Any] = {}
    exec(code, written)  # noqa: S102 - our own manual

    def opens(secret: str, sent: str | None) -> bool:
        headers = {} if sent is None else {header: sent}
        with override_settings(**{setting: secret}):
            return is_allowed(written[name], RequestFactory().get("/", headers=headers))

    assert opens("s3cret", form.format("s3cret"))
    assert not opens("s3cret", form.format("other"))
    assert not opens("s3cret", None)
    assert not opens("", form.format(""))
    assert not opens("", None)


def test_every_page_is_reachable_from_the_readme() -> None:
    seen, todo = set(), [README]
    while todo:
        page = todo.pop()
        seen.add(page)
        links = (target.partition("#")[0] for target in LINK.findall(page.read_text()) if "://" not in target)
        found = {(page.parent / link).resolve() for link in links if link.endswith(".md")}
        todo += [linked for linked in found if linked not in seen and linked.is_file()]
    assert [name_of(page) for page in PAGES if page.resolve() not in seen] == []


def test_the_site_has_the_pages_of_the_readme_in_the_same_order() -> None:
    contents = "".join(blocks(ROOT / "docs" / "index.md", "{toctree}"))
    pages = [line for line in contents.splitlines() if line and not line.startswith(":")]
    read_on = README.read_text().partition("## Read on")[2]
    linked = [target.removesuffix(".md").removeprefix("docs/") for target in LINK.findall(read_on) if ".md" in target]
    assert pages == [target.lower() for target in linked]


@pytest.mark.django_db
def test_no_migration_is_missing() -> None:
    call_command("makemigrations", "tenant_slots", check_changes=True, dry_run=True, verbosity=0)
