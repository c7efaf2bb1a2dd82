"""The page of a tenant queue, and why a job waits."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connection
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from tenant_slots import rates, tenant_job
from tenant_slots.admin import queue_charts, reasons, snapshots
from tenant_slots.admin.arguments import HIDDEN, as_text, is_hidden, shown_args, shown_kwargs
from tenant_slots.admin.jobs import TenantJobAdmin
from tenant_slots.admin.queue_charts import SPANS, Span, ticks_of
from tenant_slots.models import JobDependency, KeptChange, Kind, State, TenantQueue
from tenant_slots.stats.pace import pace_of
from tenant_slots.stats.reasons import Reason, Waits, why_waiting
from tests.admin.site import JOBS, change_page, signed_in
from tests.admin.test_limits import limit_page
from tests.factories import admit, another_process, fresh, running_job, tenant_queue, waiting_job, worker_on_record
from tests.jobs import import_once
from tests.reports_app.models import Report

pytestmark = pytest.mark.django_db


def ago(**time: float) -> Any:
    return timezone.now() - timedelta(**time)


def ran(row: TenantQueue, enqueued: float, started: float, ended: float, **values: Any) -> None:
    """A job with these times, in minutes ago."""
    waiting_job(
        row, state=State.FINISHED, attempt=1, enqueued_at=ago(minutes=enqueued), started_at=ago(minutes=started),
        ended_at=ago(minutes=ended), **values,
    )  # fmt: skip


def one_of_last_month(**values: Any) -> TenantQueue:
    row = tenant_queue(**values)
    TenantQueue.objects.filter(pk=row.pk).update(created_at=ago(days=30))
    found: TenantQueue = fresh(row)
    return found


def known(values: list[Any]) -> list[Any]:
    return [value for value in values if value is not None]


def charts_of(row: TenantQueue, span: Span) -> Any:
    return queue_charts.charts_of(row, span, queue_charts.read(row, span))


def test_the_charts_show_what_ran_what_waited_and_how_long() -> None:
    row = one_of_last_month(max_job=4)
    ran(row, 5.5, 3.5, 1.5)
    waiting_job(row, enqueued_at=ago(minutes=2.5))

    usage, delays, ends = charts_of(row, SPANS["1h"])

    running, waiting, limit = usage.series
    assert list(running.values[-6:]) == [0, 0, 1, 1, 0, 0]
    assert list(waiting.values[-6:]) == [1, 1, 0, 1, 1, 1]
    assert set(limit.values) == {4}
    assert [value for value in delays.series[1].values if value is not None] == [pytest.approx(120, abs=1)]
    ended, failed = ends.series
    assert (list(ended.values[-3:]), set(failed.values)) == ([0, 1, 0], {0})


def test_a_backlog_that_was_canceled_is_still_to_be_seen() -> None:
    """As it was until then; what was scheduled, or waited for other jobs, was none of it."""
    row = one_of_last_month(max_job=0)
    canceled = {"state": State.CANCELED, "enqueued_at": ago(minutes=5.5), "ended_at": ago(minutes=2.5)}
    for _ in range(3):
        waiting_job(row, **canceled)
    waiting_job(row, **canceled, run_after=ago(minutes=-9))
    job = waiting_job(row, **canceled)
    JobDependency.objects.create(job=job, after=waiting_job(row, state=State.FINISHED), is_open=False)
    usage, _, _ = charts_of(row, SPANS["1h"])
    assert list(usage.series[1].values[-8:]) == [0, 0, 3, 3, 3, 0, 0, 0]


@pytest.mark.parametrize("span", SPANS)
def test_a_burst_between_two_points_shows_in_every_span(span: str) -> None:
    row = one_of_last_month(
        max_job=4, limit_history=[[ago(minutes=42).timestamp(), 1], [ago(minutes=40).timestamp(), 9]]
    )
    for _ in range(8):
        ran(row, 43.5, 41.5, 40.5)
    for _ in range(30):
        ran(row, 20.5, 20.4, 20.3)
    usage, _, ends = charts_of(row, SPANS[span])
    running, waiting, limit = (list(series.values) for series in usage.series)
    assert (max(known(running)), max(known(waiting)), max(known(limit))) == (8, 8, 9)
    assert max(known(list(ends.series[0].values))) == 30


@pytest.mark.parametrize(("kept", "days"), [(7 * 86400, 3), (2 * 86400, 2)], ids=["too young", "deleted by now"])
def test_of_what_is_not_known_a_chart_has_a_gap_and_no_zero(kept: int, days: int, settings: Any) -> None:
    settings.TENANT_SLOTS = {"RETENTION": kept}
    row = tenant_queue()
    TenantQueue.objects.filter(pk=row.pk).update(created_at=ago(days=3, minutes=-1))
    usage, _, ends = charts_of(fresh(row), SPANS["7d"])
    for series in (*usage.series[:2], *ends.series):
        assert list(series.values) == [None] * (85 - 12 * days) + [0] * (12 * days), series.name
    assert list(usage.series[2].values) == [None] * (85 - 12 * 3) + [1] * (12 * 3), "known longer than jobs"


@pytest.mark.parametrize("span", SPANS)
def test_every_span_has_a_chart_and_a_table(boss: Client, span: str) -> None:
    row = tenant_queue()
    ran(row, 30, 20, 10)
    page = boss.get(change_page(row), {"span": span}).content.decode()
    assert page.count('class="slots-chart" role="img"') == 3
    assert page.count("<details><summary>As a table") == 3
    assert f'href="?span={span}" aria-current="page"' in page


@pytest.mark.parametrize(("span", "seconds"), [("1h", 1), ("24h", 15), ("7d", 120)])
def test_viewers_share_charts_for_so_short_a_time_that_no_point_shows_it(
    boss: Client, monkeypatch: pytest.MonkeyPatch, span: str, seconds: int
) -> None:
    clock = SimpleNamespace(monotonic=lambda: 1000.0)
    monkeypatch.setattr(snapshots, "time", clock)
    row, other = one_of_last_month(), one_of_last_month(tenant="other")

    def queries(one: TenantQueue) -> int:
        with CaptureQueriesContext(connection) as captured:
            assert boss.get(change_page(one), {"span": span}).status_code == 200
        return sum("periodsago" in query["sql"] or '"period"' in query["sql"] for query in captured)

    assert (queries(row), queries(row)) == (2, 0)
    assert queries(other) == 2, "another one's charts are its own"
    clock.monotonic = lambda: 1000.0 + seconds - 0.1
    assert queries(row) == 0
    clock.monotonic = lambda: 1000.0 + seconds
    assert queries(row) == 2


def test_the_page_lists_who_holds_slots_who_waits_and_changes(boss: Client) -> None:
    row = tenant_queue(max_job=1)
    holding = running_job(row, another_process("worker-7"))
    first, second = waiting_job(row, priority=5), waiting_job(row)
    boss.post(limit_page(row), {"max_job": 2, "version": 0, "reason": "because & so"})

    response = boss.get(change_page(row))

    page = response.content.decode()
    assert [(job, job.is_stale) for job in response.context["slots_holding"]] == [(holding, False)]
    assert [job for _, job in response.context["slots_backlog"]] == [first, second]
    assert "worker-7" in page
    [entry] = response.context["slots_history"]
    assert (entry.what, entry.old, entry.new, entry.reason) == ("limit", "1", "2", "because & so")
    assert "because &amp; so" in page


def test_the_backlog_is_shown_as_far_as_fifty(boss: Client) -> None:
    row = tenant_queue(max_job=0)
    for _ in range(55):
        waiting_job(row)
    assert len(boss.get(change_page(row)).context["slots_backlog"]) == 50


def test_which_jobs_there_are_is_for_those_who_may_see_jobs(viewer: Client) -> None:
    row = tenant_queue(max_job=1)
    jobs = [running_job(row, another_process()), waiting_job(row)]
    theirs, others = (
        client.get(change_page(row)).content.decode() for client in (signed_in("view_tenantqueue"), viewer)
    )
    for job in jobs:
        assert str(job.uuid) not in theirs
        assert str(job.uuid) in others, "the control"
    assert jobs[0].task not in theirs


def test_the_page_has_as_many_queries_for_many_jobs_as_for_few(boss: Client) -> None:
    row = tenant_queue()
    counts = []
    for jobs in (2, 40):
        for _ in range(jobs):
            waiting_job(row), ran(row, 30, 20, 10)
        boss.get(change_page(row))
        snapshots.forget_shared()
        with CaptureQueriesContext(connection) as captured:
            boss.get(change_page(row))
        counts.append(len(captured))
    assert counts[0] == counts[1]


def test_staff_who_may_not_see_jobs_get_no_links_to_them() -> None:
    client = signed_in("view_tenantqueue")
    row = tenant_queue(max_job=0)
    job = waiting_job(row)
    assert change_page(job) not in client.get(change_page(row)).content.decode()


# --- when it may start ---------------------------------------------------------------------------------------------


def pace_in(row: TenantQueue) -> tuple[int, float] | None:
    """How many have ended, in how many seconds."""
    pace = pace_of(row)
    return (pace.ended, pace.seconds) if pace else None


def middle(waits: Waits) -> float:
    """Of the seconds after which it may start, from the fewest to the most: as many times more as times less."""
    assert waits.seconds_to_start
    fewest, most = waits.seconds_to_start
    return math.sqrt(fewest * most)


def test_an_estimate_is_the_tenants_own_pace_since_it_has_had_jobs() -> None:
    """Not what it was in a quarter of an hour for most of which it had none: that was 30 minutes."""
    worker_on_record("a")
    row = tenant_queue(max_job=50)
    for _ in range(8):
        ran(row, 1, 0.5, 0)
    jobs = [waiting_job(row, enqueued_at=ago(minutes=1)) for _ in range(16)]
    waits = why_waiting(jobs[-1])
    assert isinstance(waits, Waits)
    assert middle(waits) == pytest.approx(120, abs=2)
    text = " ".join(reasons.why_waiting(jobs[-1]))
    assert re.search(r"It starts in about \d+ \w+ to \d+ min\. .* ended in 1 min with something to run: 8\.", text)


def test_an_estimate_by_a_single_job_does_not_speak_of_1_jobs() -> None:
    worker_on_record("a")
    row = tenant_queue()
    ran(row, 1, 0.5, 0)
    text = " ".join(reasons.why_waiting(waiting_job(row)))
    assert "It starts in about" in text
    assert not re.search(r"\b1 (jobs|are)\b", text)


def test_time_in_which_a_tenant_wanted_nothing_does_not_count() -> None:
    row = tenant_queue()
    for _ in range(4):
        ran(row, 41, 40.5, 40)
    job = waiting_job(row, enqueued_at=ago(minutes=1))
    assert pace_in(row) == (4, pytest.approx(120, abs=2))
    waits = why_waiting(job)
    assert isinstance(waits, Waits)
    assert middle(waits) == pytest.approx(30, abs=1)


def test_while_nothing_ends_an_estimate_grows() -> None:
    row = tenant_queue()
    ran(row, 30, 29, 28)
    waiting_job(row, enqueued_at=ago(minutes=30))
    assert pace_in(row) == (1, pytest.approx(30 * 60, abs=2))


def test_of_a_long_backlog_the_latest_ends_count() -> None:
    """Fifty jobs were enqueued an hour ago, and one ended each second of the last minute."""
    row = tenant_queue()
    for seconds in range(60):
        ran(row, 55, 50, seconds / 60)
    waiting_job(row, enqueued_at=ago(minutes=55))
    assert pace_in(row) == (49, pytest.approx(49, abs=2))


def after_a_pause(row: TenantQueue) -> None:
    row.pause()
    row.resume()


def after_a_rest_that_was_ended(row: TenantQueue) -> None:
    TenantQueue.objects.filter(pk=row.pk).update(rests_until=timezone.now() + timedelta(minutes=1))
    row.end_rest()


@pytest.mark.parametrize(
    "let_go",
    [
        after_a_pause,
        after_a_rest_that_was_ended,
        lambda row: row.set_limit(7),
        lambda row: row.set_share(7),
        lambda row: row.set_max_job_per_key(7),
    ],
)
def test_the_pace_counts_from_when_it_was_last_let_go(let_go: Callable[[TenantQueue], object]) -> None:
    """Its backlog has been ready for an hour, and for most of that it was held back."""
    row = tenant_queue()
    let_go(row)
    KeptChange.objects.update(at=ago(minutes=1))
    ran(row, 55, 54, 53)
    for seconds in range(1, 31):
        ran(row, 55, seconds / 60, (seconds - 1) / 60)
    jobs = [waiting_job(row, enqueued_at=ago(minutes=55)) for _ in range(40)]
    assert pace_in(row) == (30, pytest.approx(60, abs=2))
    waits = why_waiting(jobs[-1])
    assert isinstance(waits, Waits)
    assert middle(waits) == pytest.approx(80, abs=3)


def test_so_it_does_from_the_end_of_a_rest() -> None:
    row = tenant_queue(max_job=2, rests_until=ago(minutes=1))
    ran(row, 55, 54, 53)
    ran(row, 55, 0.5, 0.4)
    waiting_job(row, enqueued_at=ago(minutes=55)), waiting_job(row, enqueued_at=ago(minutes=55))
    assert pace_in(row) == (1, pytest.approx(60, abs=2))
    admit(row, 1)
    assert fresh(row).rests_until is None
    assert pace_in(row) == (1, pytest.approx(60, abs=2)), "whoever admits has taken the moment away"


def test_a_rest_that_goes_on_is_no_slow_pace() -> None:
    row = tenant_queue(rests_until=timezone.now() + timedelta(minutes=10))
    for minutes in range(50, 54):
        ran(row, 55, minutes + 1, minutes)
    job = waiting_job(row, enqueued_at=ago(minutes=55))
    assert pace_in(row) == (4, pytest.approx(5 * 60, abs=2))
    waits = why_waiting(job)
    assert isinstance(waits, Waits)
    assert waits.seconds_to_start
    fewest, most = waits.seconds_to_start
    assert math.sqrt((fewest - 600) * (most - 600)) == pytest.approx(75, abs=3)


def test_nobody_knows_the_pace_before_something_has_ended_since() -> None:
    row = tenant_queue()
    ran(row, 55, 54, 53)
    row.set_limit(5)
    job = waiting_job(row)
    worker_on_record("a")
    waits = why_waiting(job)
    assert isinstance(waits, Waits)
    assert waits.seconds_to_start is None
    assert "Nobody can say when it starts." in reasons.why_waiting(job)


def range_of(*seconds: float, position: int = 1) -> tuple[float, float]:
    """What is estimated after so many seconds from one end to the next, the last of them now."""
    row = tenant_queue(f"tenant {TenantQueue.objects.count()}")
    for number in range(len(seconds)):
        ran(row, sum(seconds) / 60, sum(seconds) / 60, sum(seconds[number + 1 :]) / 60)
    jobs = [waiting_job(row) for _ in range(position)]
    waits = why_waiting(jobs[-1])
    assert isinstance(waits, Waits)
    assert waits.seconds_to_start
    return waits.seconds_to_start


def test_an_estimate_says_how_sure_it_is() -> None:
    def width(seconds: tuple[float, float]) -> float:
        return seconds[1] / seconds[0]

    even, uneven = [10.0] * 20, [1.0, 19.0] * 10
    assert width(range_of(*even)) < 2
    assert width(range_of(*even)) < width(range_of(*uneven)), "jobs that end unevenly"
    assert width(range_of(*even)) < width(range_of(10.0)), "few of them"
    assert width(range_of(*uneven, position=9)) < width(range_of(*uneven)), "of many the long and the short even out"


def test_what_overflows_is_at_the_pace_of_its_own_queue_and_behind_no_other() -> None:
    row = tenant_queue(max_job=9)
    for minutes in range(50):
        ran(row, 55, minutes + 1, minutes, rq_queue="imports_slow")
    overflowed = [waiting_job(row, rq_queue="imports_slow", enqueued_at=ago(minutes=55)) for _ in range(100)]
    for seconds in range(30):
        ran(row, 0.5, seconds / 60, seconds / 60)
    job = waiting_job(row, enqueued_at=ago(minutes=0.5))
    for one, position, seconds in ((job, 1, 1), (overflowed[-1], 100, 6000)):
        waits = why_waiting(one)
        assert isinstance(waits, Waits)
        assert (waits.position, middle(waits)) == (position, pytest.approx(seconds, rel=0.05))


def test_a_reservation_may_have_the_slot_of_any_job_of_its_tenant() -> None:
    row = tenant_queue(max_job=1)
    for minutes in range(50):
        ran(row, 55, minutes + 1, minutes, rq_queue="imports_slow")
    waits = why_waiting(waiting_job(row, kind=Kind.RESERVATION, enqueued_at=ago(minutes=55)))
    assert isinstance(waits, Waits)
    assert middle(waits) == pytest.approx(60, abs=2)


def test_who_passes_others_may_start_before_them_or_after() -> None:
    """All of one user's jobs but the one that runs are passed over, and the pace is that of this user."""
    row = tenant_queue(max_job=9, max_job_per_key=2)
    for minutes in range(50):
        ran(row, 55, minutes + 1, minutes, key="anna")
    running_job(row, another_process("worker-7"), key="anna")
    for key in ["anna"] * 40 + ["", "bob"]:
        waiting_job(row, key=key)
    waits_for = waiting_job(row, key="carl")
    waits = why_waiting(waits_for)
    assert isinstance(waits, Waits)
    assert (waits.least_position, waits.position) == (4, 43), "one of each user, and the one without a key"
    assert waits.seconds_to_start
    soonest, latest = waits.seconds_to_start
    assert soonest < 4 * 60 < 43 * 60 < latest
    worker_on_record("a")
    assert "are to start, this one included: 4 to 43." in " ".join(reasons.why_waiting(waits_for))


def test_nobody_passes_a_job_of_the_same_user() -> None:
    row = tenant_queue(max_job=9, max_job_per_key=2)
    for minutes in range(50):
        ran(row, 55, minutes + 1, minutes, key="anna")
    running_job(row, another_process("worker-7"), key="anna")
    jobs = [waiting_job(row, key=key) for key in ["bob"] * 5 + ["anna"] * 40]
    waits = why_waiting(jobs[-1])
    assert isinstance(waits, Waits)
    assert Reason.KEY_LIMIT not in waits.reasons
    assert (waits.least_position, waits.position) == (42, 45), "two of bob's, and all of anna's"


def test_an_estimate_is_not_sooner_than_the_rate_allows() -> None:
    row = tenant_queue(max_job=9, **rates.fields_of(rates.Rate(1, timedelta(minutes=1), 1)))
    TenantQueue.objects.update(**rates.taken(1))
    ran(row, 0.2, 0.1, 0.05)
    jobs = [waiting_job(fresh(row)) for _ in range(3)]
    waits = why_waiting(jobs[-1])
    assert isinstance(waits, Waits)
    assert waits.reasons == (Reason.RATE,)
    assert middle(waits) == pytest.approx(180, abs=2)


def test_the_answer_is_on_the_page_of_a_job_that_waits(viewer: Client) -> None:
    row = tenant_queue()
    assert "number 1 in the backlog" in viewer.get(change_page(waiting_job(row))).content.decode()
    assert "Why is this job" not in viewer.get(change_page(waiting_job(row, state=State.FINISHED))).content.decode()


# --- secrets -------------------------------------------------------------------------------------------------------


def job_with_secrets() -> Any:
    kwargs = {"path": "open.csv", "Token": "s3cret", "options": [{"API-Key": "s3cret", "url": "u.csv"}]}
    context = {"request_id": "r-open", "token": "s3cret"}
    return waiting_job(tenant_queue(), kwargs=kwargs, context=context, result={"password": "s3cret"})


def test_arguments_need_a_permission_of_their_own(viewer: Client) -> None:
    page = change_page(job_with_secrets())
    changer = signed_in("view_tenantjob", "change_tenantjob")
    reader = signed_in("view_tenantjob", "view_job_arguments")
    for secret in ("open.csv", "r-open"):
        assert secret not in viewer.get(page).content.decode()
        assert secret not in changer.get(page).content.decode()
        assert secret in reader.get(page).content.decode()


def test_named_keys_are_hidden_from_everybody_however_deep(boss: Client) -> None:
    page = boss.get(change_page(job_with_secrets())).content.decode()
    assert "s3cret" not in page
    assert page.count(HIDDEN) == 4
    assert "u.csv" in page


def test_a_positional_argument_is_hidden_by_the_name_of_its_parameter() -> None:
    job = waiting_job(tenant_queue())
    job.task = "tests.jobs.record"
    job.args = ["acme", "n", "h"]
    with override_settings(TENANT_SLOTS={"HIDDEN_ARGUMENTS": ["history"]}):
        assert '"h"' not in shown_args(job)
        assert '"acme"' in shown_args(job)


@override_settings(TENANT_SLOTS={"HIDDEN_ARGUMENTS": ["words"]})
def test_so_is_that_of_a_method_whose_object_is_not_among_them() -> None:
    report = Report.objects.create(tenant="acme")
    assert shown_args(report.summarize.enqueue("s3cret")) == as_text([HIDDEN])


@override_settings(TENANT_SLOTS={"HIDDEN_ARGUMENTS": ["parts"]})
def test_and_each_of_those_that_a_parameter_with_an_asterisk_takes() -> None:
    job = import_once.enqueue("acme", "feed.csv", "s3cret", "another one")
    assert shown_args(job) == as_text(["acme", "feed.csv", HIDDEN, HIDDEN])


def test_nor_is_any_shown_of_a_function_whose_parameters_nobody_knows_here() -> None:
    """As in a web server that imports a module only when it enqueues something of it."""
    job = waiting_job(tenant_queue(), kwargs={"path": "feed.csv"})
    job.task, job.args = "shop.jobs.sign_in", ["acme", "s3cret"]
    assert shown_args(job) == as_text([HIDDEN, HIDDEN])
    assert "feed.csv" in shown_kwargs(job)


@tenant_job("imports", tenant="tenant")
def sign_in(tenant: str, *, user: str = "", **more: str) -> None:
    """It has taken a token after the tenant once."""


def test_nor_are_those_that_a_function_took_when_it_was_enqueued_and_takes_no_more() -> None:
    """A deploy has taken the parameter away; the jobs of before it are kept for a week."""
    job = waiting_job(tenant_queue())
    job.task, job.args = sign_in.tenant_task.path, ["acme", "s3cret"]
    assert shown_args(job) == as_text(["acme", HIDDEN])


@override_settings(TENANT_SLOTS={"HIDDEN_ARGUMENTS": ["iban"]})
def test_the_project_says_which_keys_are_hidden() -> None:
    assert is_hidden("IBAN")
    assert not is_hidden("token")


@pytest.mark.parametrize("name", ["api_key", "API-Key", "apiKey", "APIKEY"])
def test_a_key_is_hidden_however_its_words_are_joined(name: str) -> None:
    """As in JSON of a partner's."""
    assert is_hidden(name)
    assert not is_hidden(f"{name}s")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("query", ["kwargs__Token__startswith=s", "kwargs__icontains=s3", "args__0=1", "result__x=1"])
def test_nobody_can_guess_a_hidden_value_through_the_address(boss: Client, query: str) -> None:
    job_with_secrets()
    assert boss.get(f"/admin/tenant_slots/tenantjob/?{query}").status_code == 400


def places_on_page(page: str) -> dict[str, int]:
    """Where charts, who holds the slots, the form and what is next begin."""
    names = ("slots-charts-title", "slots-holding-title", 'id="tenantqueue_form"', "slots-backlog-title")
    return {name: page.index(name) for name in names}


def test_how_it_fares_and_who_runs_now_come_before_the_form(boss: Client) -> None:
    places = places_on_page(boss.get(change_page(tenant_queue())).content.decode())
    assert list(places.values()) == sorted(places.values())


def test_a_form_with_an_error_comes_first(boss: Client) -> None:
    row = tenant_queue()
    page = boss.post(change_page(row), {"max_job": "-1", "seen_version": row.version}).content.decode()
    places = places_on_page(page)
    assert places['id="tenantqueue_form"'] == min(places.values())


def test_the_head_of_the_page_says_how_it_fares(boss: Client) -> None:
    row = tenant_queue(max_job=3)
    running_job(row, another_process())
    waiting_job(row)
    response = boss.get(change_page(row))
    assert response.context["slots_state"] == "Waits for a worker"
    assert [str(value) for _, value in response.context["slots_figures"]][:2] == ["1 / 3", "1"]
    assert "1 / 3" in response.content.decode()


def test_the_page_takes_a_dozen_queries_at_most() -> None:
    codenames = ("view_tenantqueue", "change_tenantqueue", "view_tenantjob", "set_limit_tenantqueue")
    client, row = signed_in(*codenames), tenant_queue(max_job=3)
    running_job(row, another_process())
    waiting_job(row)
    client.get(change_page(row))
    with CaptureQueriesContext(connection) as captured:
        client.get(change_page(row))
    assert len(captured) <= 12, [query["sql"][:100] for query in captured]


def test_the_backlog_has_jobs_for_an_overflow_queue_in_their_place(boss: Client) -> None:
    row = tenant_queue(max_job=0)
    jobs = [waiting_job(row, rq_queue=name, priority=priority) for name, priority in (("", 0), ("reports", 5), ("", 9))]
    shown = boss.get(change_page(row)).context["slots_backlog"]
    assert [job.pk for _, job in shown] == [jobs[2].pk, jobs[1].pk, jobs[0].pk]


def test_a_backlog_that_is_all_for_an_overflow_queue_is_shown(boss: Client) -> None:
    row = tenant_queue(max_job=0)
    job = waiting_job(row, rq_queue="reports")
    assert [one.pk for _, one in boss.get(change_page(row)).context["slots_backlog"]] == [job.pk]


@override_settings(TIME_ZONE="Europe/Berlin")
@pytest.mark.parametrize(
    ("now", "hours"),
    [
        (datetime(2026, 10, 25, 2, 0, tzinfo=UTC), ["01:00", "02:00", "02:00", "03:00"]),
        (datetime(2027, 3, 28, 2, 0, tzinfo=UTC), ["00:00", "01:00", "03:00", "04:00"]),
    ],
)
def test_where_the_clock_is_changed_the_axis_of_a_chart_has_the_times_that_it_showed(
    now: datetime, hours: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timezone, "now", lambda: now)
    ticks = ticks_of(SPANS["24h"])
    assert ticks[::4][-4:] == hours


def test_jobs_that_the_projects_own_admin_shows_nobody_are_not_on_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TenantJobAdmin, "has_view_permission", lambda self, request, obj=None: False)
    viewer = signed_in("view_tenantqueue", "view_tenantjob")
    row = tenant_queue(max_job=0)
    job = waiting_job(row)
    assert viewer.get(JOBS).status_code == 403
    assert str(job.uuid) not in viewer.get(change_page(row)).content.decode()
