"""The overview of all tenants together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

import django_rq
import pytest
from django.conf import settings
from django.contrib.admin import site
from django.db import connection
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone, translation
from rq.suspension import resume, suspend

import tests.jobs  # noqa: F401  the task is known once its module is imported
from tenant_slots.admin import TenantQueueAdmin, snapshots
from tenant_slots.admin.charts import Chart, Mark, Series
from tenant_slots.db import clock
from tenant_slots.db.clock import minute_of, start_of
from tenant_slots.fleet import Fleet
from tenant_slots.models import BulkChange, KeptChange, QueueMinute, State, SweepClaim, TenantJob, TenantQueue
from tenant_slots.models.queue_minute import ALL_QUEUES
from tenant_slots.stats.deploys import last_deploys
from tests.admin.site import HOSTILE, JOBS, QUEUES, change_page, signed_in
from tests.admin.test_workers import WORKERS
from tests.factories import (
    age,
    another_process,
    fresh,
    running_job,
    somebody_sweeps,
    tenant_queue,
    waiting_job,
    worker_on_record,
)

pytestmark = pytest.mark.django_db

OVERVIEW = reverse("admin:tenant_slots_tenantqueue_overview")


@pytest.fixture(autouse=True)
def _no_worker(within_one_minute: None) -> None:
    django_rq.get_connection("imports").flushall()


def page(client: Client, **query: str) -> str:
    snapshots.forget_shared()
    return client.get(OVERVIEW, query).content.decode()


def told(client: Client) -> dict[str, str]:
    """The sentences with the address of each."""
    snapshots.forget_shared()
    return {sentence.text: sentence.url for sentence in client.get(OVERVIEW).context["sentences"]}


def charts(client: Client, **query: str) -> dict[str, list[Any]]:
    """The values by the name of the line."""
    snapshots.forget_shared()
    found = client.get(OVERVIEW, query).context["charts"]
    return {series.name: list(series.values) for chart in found for series in chart.series}


def tiles(client: Client, **query: str) -> dict[str, str]:
    snapshots.forget_shared()
    return dict(client.get(OVERVIEW, query).context["tiles"])


def counted(back: int, queue: str = ALL_QUEUES, **figures: Any) -> None:
    minute = minute_of(clock.now()) - 1 - back
    QueueMinute.objects.create(queue=queue, minute=start_of(minute), **figures)


# --- what needs a person --------------------------------------------------------------------------------------------


def test_when_all_is_well_it_says_so(viewer: Client) -> None:
    somebody_sweeps()
    worker_on_record("one")
    waiting_job(tenant_queue())
    assert told(viewer) == {}
    assert "Nothing: workers take the jobs of each queue" in page(viewer)


def test_a_queue_with_jobs_and_nobody_leads_to_the_workers(viewer: Client) -> None:
    somebody_sweeps()
    waiting_job(tenant_queue())
    text = "Jobs wait in queue imports, and no worker takes them. Start one: manage.py rqworker imports."
    assert told(viewer) == {text: WORKERS}


@pytest.mark.parametrize("model", ["tenantqueue", "tenantjob"])
def test_a_bulk_change_that_nobody_goes_on_with_leads_to_the_bulk_changes(viewer: Client, model: str) -> None:
    somebody_sweeps()
    job = waiting_job(tenant_queue(max_job=0), state=State.SCHEDULED, run_after=timezone.now() + timedelta(hours=1))
    facts = {"site": "admin", "action": "pause", "values": {}, "total": 1, "language": "en"}
    facts["user_key"] = viewer.session["_auth_user_id"]
    change = BulkChange.objects.create(model=f"tenant_slots.{model}", job=job.uuid, **facts)
    assert told(viewer) == {}, "the control: its job is to run"
    TenantJob.objects.update(state=State.FAILED, ended_at=timezone.now())
    text = "1 bulk change has not ended, and nobody goes on with it."
    assert told(viewer) == {text: reverse(f"admin:tenant_slots_{model}_bulk_changes")}
    BulkChange.objects.filter(pk=change.pk).update(ended_at=timezone.now(), ending="done")
    assert told(viewer) == {}


def test_of_bulk_changes_that_nobody_goes_on_with_those_count_that_the_viewer_may_see(viewer: Client) -> None:
    somebody_sweeps()
    tenant_queue()
    user_key = viewer.session["_auth_user_id"]
    facts = {"model": "tenant_slots.tenantqueue", "action": "pause", "total": 1, "language": "en", "job": uuid4()}
    for name, key in (("admin", user_key), ("admin", "another"), ("elsewhere", user_key)):
        BulkChange.objects.create(site=name, user_key=key, **facts)
    assert list(told(viewer)) == ["1 bulk change has not ended, and nobody goes on with it."]
    all_seeing = signed_in("view_tenantqueue", "view_bulkchange")
    assert list(told(all_seeing)) == ["2 bulk changes have not ended, and nobody goes on with them."]


def test_nobody_sweeps(viewer: Client) -> None:
    assert any(text.startswith("Nobody has ever swept. Start a worker") for text in told(viewer))
    SweepClaim.objects.create(name="everywhere", until=timezone.now() - timedelta(minutes=10))
    swept = {text: url for text, url in told(viewer).items() if text.startswith("Nobody has swept for 10 min.")}
    assert list(swept.values()) == [WORKERS], "it leads to where one sees whether anybody works"


def test_redis_away_and_suspended_workers(viewer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    somebody_sweeps()
    monkeypatch.setattr("tenant_slots.fleet.known", lambda *_: Fleet((), ("imports",), tuple(settings.RQ_QUEUES)))
    redis, suspended = told(viewer)
    assert redis.endswith("nothing is known of their workers: imports.")
    assert suspended.startswith("All workers are suspended")


def test_suspended_workers_of_one_server_are_told_from_those_of_others(viewer: Client) -> None:
    """Another database of a Redis is another server to RQ."""
    somebody_sweeps()
    elsewhere = {**settings.RQ_QUEUES["reports"], "DB": 1}
    with override_settings(RQ_QUEUES={**settings.RQ_QUEUES, "reports": elsewhere}):
        connection_elsewhere = django_rq.get_connection("reports")
        suspend(connection_elsewhere)
        try:
            said = "The workers of these queues are suspended, until somebody calls rq resume for their Redis: reports."
            assert list(told(viewer)) == [said]
            assert said in viewer.get(WORKERS).content.decode()
            suspend(django_rq.get_connection("imports"))
            assert list(told(viewer)) == [f"{said.partition(':')[0]}: {', '.join(settings.RQ_QUEUES)}."]
        finally:
            resume(connection_elsewhere)
            resume(django_rq.get_connection("imports"))


def test_stale_and_stuck_jobs_and_pauses_lead_to_their_lists(viewer: Client) -> None:
    somebody_sweeps()
    worker_on_record("one")
    age(running_job(tenant_queue("stale"), another_process()), beat_at=1000)
    job = running_job(tenant_queue("stuck"), another_process())
    type(job).objects.filter(pk=job.pk).update(state="queued")
    age(job, admitted_at=1000)
    waiting_job(tenant_queue("paused", paused=True))
    tenant_queue("paused and idle", paused=True)
    later = timezone.now() + timedelta(hours=1)
    waiting_job(tenant_queue("paused until", paused=True, resume_at=later))
    waiting_job(tenant_queue("odd", queue="gone"))
    found = told(viewer)
    assert [text.split()[0] for text in found] == ["1"] * 4
    stale, stuck, paused, gone = found.values()
    assert (stale, stuck, paused) == (f"{QUEUES}?state=stale", f"{JOBS}?state=queued", f"{QUEUES}?paused__exact=1")
    assert gone == QUEUES
    for url in (stale, stuck, paused):
        assert len(viewer.get(url).context["cl"].result_list) in (1, 3), "the filter works"
    assert "" in told(signed_in("view_tenantqueue")).values(), "no link to jobs for those who may not see any"


# --- figures ---------------------------------------------------------------------------------------------------------


def test_the_lines_have_the_figures_and_gaps_where_nobody_has_counted(viewer: Client) -> None:
    counted(0, finished=8, failed=2, running=3, runnable=4, held_back=5, workers=6, delays_2=20)
    counted(2, failed=1)
    found = charts(viewer)
    assert found["ended"][-4:] == [None, 1, None, 10]
    assert found["failed"][-4:] == [None, 1, None, 2]
    assert found["running jobs"][-4:] == [None, None, None, 3]
    assert (found["workers alive"][-1], found["could run: a slot is free"][-1]) == (6, 4)
    assert found["held back: limit, pause, rest, rate or key"][-1] == 5
    assert found["p95, seconds"][-4:] == [None, None, None, pytest.approx(0.975)]


def test_the_tiles_say_what_is_now_and_what_the_time_has_brought(viewer: Client) -> None:
    counted(0, finished=8, failed=2, running=3, runnable=4, held_back=5, workers=6)
    counted(30, failed=5, running=90)
    found = tiles(viewer)
    assert found["Running / workers alive"] == "3 / 6"
    assert (found["Ended, 1 hour"], found["Failed, 1 hour"]) == ("15", "7")
    assert (found["Waiting: could run"], found["Waiting: held back"]) == ("4", "5")


def test_of_one_queue(viewer: Client) -> None:
    counted(0, finished=9, running=1, runnable=0, held_back=0, workers=1)
    counted(0, "imports", finished=5, running=1, runnable=0, held_back=0, workers=1)
    assert tiles(viewer, queue="imports")["Ended, 1 hour"] == "5"
    assert tiles(viewer, queue="reports")["Ended, 1 hour"] == "0"
    assert tiles(viewer, queue="unheard of")["Ended, 1 hour"] == "9"


@pytest.mark.parametrize("span", ["1h", "24h", "7d"])
def test_a_burst_of_one_minute_shows_in_every_span(viewer: Client, span: str) -> None:
    counted(40, finished=50_000), counted(39, finished=1), counted(0)
    assert max(filter(None, charts(viewer, span=span)["ended"])) == 50_000
    assert f'href="?span={span}&amp;queue=" aria-current="page"' in page(viewer, span=span)


def test_changes_are_marks_and_a_list(viewer: Client) -> None:
    row, other = tenant_queue("acme"), tenant_queue("other", queue="reports")
    row.set_limit(7, by="anna", reason="import day")
    other.set_limit(5)
    KeptChange.objects.filter(tenant_queue=other).update(at=timezone.now() - timedelta(minutes=30))
    tenant_queue("old").set_limit(9)
    KeptChange.objects.filter(tenant_queue__tenant="old").update(at=timezone.now() - timedelta(hours=2))
    context = viewer.get(OVERVIEW).context
    assert [mark.x for mark in context["charts"][0].marks] == [30, 60]
    assert context["charts"][0].marks[1].title == "acme on imports: limit 1 → 7 (anna)"
    assert {change.tenant_queue for change, _ in context["changes"]} == {row, other}
    assert [change.tenant_queue for change, _ in viewer.get(OVERVIEW, {"queue": "imports"}).context["changes"]] == [row]
    assert change_page(row) in page(viewer)


def test_changes_of_one_moment_are_one_mark(viewer: Client) -> None:
    for number in range(5):
        tenant_queue(f"tenant {number}").set_limit(9)
    (mark,) = viewer.get(OVERVIEW).context["charts"][0].marks
    assert mark.title.endswith("\nand 2 more")


def test_many_changes_at_once_hide_none_of_another_queue_or_moment(viewer: Client) -> None:
    tenant_queue("acme").set_limit(7)
    tenant_queue("reader", queue="reports").set_limit(5)
    KeptChange.objects.update(at=timezone.now() - timedelta(minutes=30))
    many = tenant_queue("many")
    change = {"at": timezone.now(), "what": "limit", "old": "1", "new": "2", "tenant_queue": many}
    KeptChange.objects.bulk_create([KeptChange(**change) for _ in range(600)])

    first, last = viewer.get(OVERVIEW).context["charts"][0].marks
    assert (first.x, first.title.splitlines()[0]) == (30, "reader on reports: limit 1 → 5 (code)")
    assert last.title.endswith("\nand 597 more")
    of_reports = viewer.get(OVERVIEW, {"queue": "reports"}).context
    assert [mark.x for mark in of_reports["charts"][0].marks] == [30]
    assert [str(change.tenant_queue) for change, _ in of_reports["changes"]] == ["reader on reports"]


VERSIONED = override_settings(TENANT_SLOTS={"PROJECT_VERSION": "v3"})


@VERSIONED
def test_deploys_are_marks_and_a_list(viewer: Client) -> None:
    for back, version in ((90, "v0"), (50, "v1"), (49, "v1"), (20, "v2"), (19, "v2"), (0, HOSTILE)):
        counted(back, version=version)
    shown = page(viewer)
    context = viewer.get(OVERVIEW).context
    assert [(mark.x, mark.title) for mark in context["charts"][0].marks] == [
        (39, "Deploy of v2"),
        (59, f"Deploy of {HOSTILE}"),
    ]
    assert "Deploy of v2" in shown
    assert HOSTILE not in shown
    tenant_queue("acme").set_limit(7, by="anna")
    counted(-1, version="v4")
    snapshots.forget_shared()
    assert [mark.title for mark in viewer.get(OVERVIEW).context["charts"][0].marks][-1].splitlines() == [
        "Deploy of v4",
        "acme on imports: limit 1 → 7 (anna)",
    ]


@VERSIONED
def test_versions_that_sweep_by_turns_are_one_deploy_and_a_step_back_is_another() -> None:
    for minute, version in enumerate(["a", "a", "b", "a", "", "b", "a", *["b"] * 20, "a"]):
        counted(40 - minute, version=version)
    minutes = [minute_of(clock.now()) - 1 - back for back in (38, 13)]
    assert [(minute_of(one.at), one.version) for one in last_deploys(3600)] == list(zip(minutes, "ba", strict=True))


def test_who_tells_no_version_asks_for_none(viewer: Client) -> None:
    with CaptureQueriesContext(connection) as captured:
        assert last_deploys(3600) == []
    assert len(captured) == 0


def test_names_are_no_markup(viewer: Client) -> None:
    tenant_queue(HOSTILE).set_limit(9, by=HOSTILE, reason=HOSTILE)
    assert HOSTILE not in page(viewer)
    assert "&lt;script&gt;" in page(viewer)


# --- who may see it --------------------------------------------------------------------------------------------------


def test_nobody_without_the_permission_sees_it() -> None:
    assert signed_in("view_tenantjob").get(OVERVIEW).status_code == 403
    assert signed_in("view_tenantqueue").get(OVERVIEW).status_code == 200, "the control"


@contextmanager
def restricted() -> Iterator[None]:
    own = TenantQueue.objects.filter(tenant="own")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TenantQueueAdmin, "tenant_queues_for", lambda self, request: own)
        yield


def test_staff_of_some_tenants_do_not_see_the_figures_of_all(viewer: Client) -> None:
    tenant_queue("own")
    for url in (QUEUES, WORKERS):
        assert OVERVIEW in viewer.get(url).content.decode(), "the control"
    with restricted():
        assert viewer.get(OVERVIEW).status_code == 403
        for url in (QUEUES, WORKERS):
            assert OVERVIEW not in viewer.get(url).content.decode()
    assert site.is_registered(TenantQueue)


# --- what it costs ---------------------------------------------------------------------------------------------------


def test_twelve_queries_at_most_and_few_for_who_comes_next(viewer: Client) -> None:
    for number in range(30):
        counted(number, finished=1), counted(number, "imports", finished=1)
        waiting_job(tenant_queue(f"tenant {number}")), fresh(TenantQueue.objects.first()).set_limit(number + 2)
    page(viewer)
    for forget, most in ((True, 12), (False, 5)):
        if forget:
            snapshots.forget_shared()
        with CaptureQueriesContext(connection) as captured:
            viewer.get(OVERVIEW, {"span": "7d"})
        assert len(captured) <= most, "\n".join(query["sql"] for query in captured)


@override_settings(LANGUAGE_CODE="de")
def test_it_speaks_german(viewer: Client) -> None:
    assert "Was jetzt jemanden braucht" in page(viewer)


# --- the charts ------------------------------------------------------------------------------------------------------


def test_a_line_has_a_gap_where_nothing_is_known() -> None:
    chart = Chart("x", ["a"] * 6, [Series("n", "css", [1, 2, None, 4, None, 0])], height=40)
    assert chart.lines() == [("css", "0,30 1,20"), ("css slots-dot", "3,0 3,0"), ("css slots-dot", "5,40 5,40")]


def test_steps_have_gaps_too() -> None:
    chart = Chart("x", ["a"] * 4, [Series("n", "css", [None, 4, 4, 2], stepped=True)], height=40)
    assert chart.lines() == [("css", "1,0 3,0 3,20")]


@pytest.mark.parametrize(
    ("highest", "unit", "axis"),
    [
        (0, "", ["1", "", "0"]),
        (3, "", ["4", "2", "0"]),
        (7, "", ["8", "4", "0"]),
        (1000, "", ["1000", "500", "0"]),
        (32_075, "", ["40000", "20000", "0"]),
        (0.3, "s", ["0.4 s", "0.2 s", "0"]),
        (47, "s", ["50 s", "25 s", "0"]),
        (51, "s", ["60 s", "30 s", "0"]),
        (61, "s", ["2 min", "1 min", "0"]),
        (570, "s", ["10 min", "5 min", "0"]),
        (7000, "s", ["2 h", "1 h", "0"]),
        (10**6, "s", ["278 h", "139 h", "0"]),
    ],
)
def test_an_axis_ends_at_a_number_that_is_easily_read(highest: float, unit: str, axis: list[str]) -> None:
    assert Chart("x", ["then", "now"], [Series("n", "css", [None, highest])], unit=unit).axis == axis


def test_the_figures_of_a_chart_are_in_the_viewers_language() -> None:
    chart = Chart("x", ["then", "now"], [Series("n", "css", [0.25, 0.3])], unit="s")
    with translation.override("de"):
        assert (chart.axis, chart.top_label) == (["0,4 s", "0,2 s", "0"], "0,3 s")
        assert chart.table() == [("now", ["0,3"]), ("then", ["0,25"])]
        assert chart.lines() == [("css", "0,37.5 1,25")], "SVG has points in all languages"


def test_an_axis_has_times_and_the_chart_its_marks(viewer: Client) -> None:
    chart = Chart("x", [str(n) for n in range(61)], [], marks=[Mark(7, "a change")])
    assert chart.times == ["0", "15", "30", "45", "60"]
    counted(0)
    tenant_queue().set_limit(9)
    text = page(viewer)
    assert text.count('class="slots-times"') == 4
    assert '<path class="slots-mark" d="M60,0V100"><title>acme on imports: limit 1 → 9 (code)</title></path>' in text
