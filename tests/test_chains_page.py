"""The how-to about jobs that run after others works as it is written."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from django.test import override_settings

from tenant_slots.models import State, TenantJob
from tenant_slots.tasks.registry import registered
from tests.factories import fresh, work
from tests.processes import ROOT

pytestmark = pytest.mark.django_db(transaction=True)

BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs/how-to/chains.md").read_text(), re.S)


@pytest.fixture
def feeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Its modules; gives one of them by name."""
    (tmp_path / "feeds").mkdir()
    for name in ("__init__", "jobs", "summary"):
        found = [block for block in BLOCKS if f"# feeds/{name}.py" in block]
        (tmp_path / f"feeds/{name}.py").write_text("".join(found))
    monkeypatch.syspath_prepend(tmp_path)
    yield lambda name: import_module(f"feeds.{name}")
    for name in [name for name in sys.modules if name.partition(".")[0] == "feeds"]:
        del sys.modules[name]
    for path in [path for path in registered if path.startswith("feeds.")]:
        del registered[path]


def run_block_with(text: str) -> dict[str, Any]:
    (block,) = (block for block in BLOCKS if text in block)
    names: dict[str, Any] = {}
    exec(block, names)  # noqa: S102 - it is ours
    return names


def test_a_chain_runs_in_its_order(feeds: Any) -> None:
    feeds("jobs")
    run_block_with("send_report.using(after=[imported])")
    work()
    ended = TenantJob.objects.filter(state=State.FINISHED).order_by("ended_at")
    assert [job.task for job in ended] == ["feeds.jobs.fetch_feed", "feeds.jobs.import_feed", "feeds.jobs.send_report"]


def test_with_after_any_it_runs_whatever_became_of_the_other(feeds: Any) -> None:
    feeds("jobs")
    fetched = run_block_with('after_any=True).enqueue("acme")')["fetched"]
    fetched.cancel()
    work()
    assert TenantJob.objects.get(task="feeds.jobs.send_report").state == State.FINISHED


def test_a_chain_of_which_the_first_has_failed_is_retried_in_its_order(feeds: Any) -> None:
    """Two jobs after one, and one after both."""
    jobs = feeds("jobs")
    first = jobs.import_feed.enqueue("acme")
    left, right = (jobs.import_feed.using(after=[first]).enqueue("acme") for _ in range(2))
    last = jobs.import_feed.using(after=[right, left]).enqueue("acme")
    first.cancel()
    assert fresh(last).state == State.CANCELED
    run_block_with("def retry_chain")["retry_chain"](first)
    assert last.dependencies.filter(is_open=True).count() == 2
    work()
    assert {job.state for job in TenantJob.objects.all()} == {State.FINISHED}
    assert max(fresh(left).ended_at, fresh(right).ended_at) <= fresh(last).started_at


@pytest.mark.parametrize("failing", [[], [1], [0, 1, 2]])
def test_a_fan_in_counts_the_results(feeds: Any, failing: list[int]) -> None:
    parts: list[Any] = [7 if number in failing else ["row"] * (number + 1) for number in range(3)]
    last = feeds("summary").import_all("acme", parts)
    work()
    rows = sum(number + 1 for number in range(3) if number not in failing)
    assert fresh(last).result == {"rows": rows, "failed": len(failing)}


@override_settings(TENANT_SLOTS={"MAX_ARGS_BYTES": 40})
def test_a_fan_in_of_many_takes_no_more_room_than_one_of_few(feeds: Any) -> None:
    last = feeds("summary").import_all("acme", [["row"]] * 30)
    assert last.dependencies.count() == 30


def test_a_fan_in_of_nothing_enqueues_nothing(feeds: Any) -> None:
    assert feeds("summary").import_all("acme", []) is None
    assert not TenantJob.objects.exists()


def test_two_fan_ins_count_their_own_results(feeds: Any) -> None:
    """Also where they are of the same tenant, and stored and run at the same time."""
    one, two = (feeds("summary").import_all("acme", [["row"] * number] * number) for number in (2, 3))
    work()
    assert [fresh(job).result for job in (one, two)] == [{"rows": 4, "failed": 0}, {"rows": 9, "failed": 0}]


def test_a_fan_in_that_is_rolled_back_leaves_nothing(feeds: Any) -> None:
    with pytest.raises(Exception, match="cannot be stored as JSON"):
        feeds("summary").import_all("acme", [["row"], object()])
    assert not TenantJob.objects.exists()
