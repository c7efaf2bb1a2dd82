"""The live list: what it shows, what it costs, who may poll it, and that viewers share one snapshot."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib import admin
from django.db import connection
from django.test import Client, RequestFactory, override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from django.utils.html import escape

from tenant_slots import fleet
from tenant_slots.admin import TenantJobAdmin, TenantQueueAdmin, charts, snapshots, words
from tenant_slots.admin.snapshots import shared_rows
from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.stats import rows
from tests.admin.site import HOSTILE, LIVE, QUEUES, in_use, signed_in
from tests.factories import age, tenant_queue, waiting_job, worker_on_record

pytestmark = pytest.mark.django_db


def poll(client: Client, *rows: TenantQueue, **query: Any) -> Any:
    return client.get(LIVE, {"rows": ",".join(str(row.pk) for row in rows), **query})


def test_a_poll_has_the_texts_and_attributes_of_the_page(viewer: Client) -> None:
    row = in_use(tenant_queue(max_job=5), 3)
    waiting_job(row)
    page = viewer.get(QUEUES).content.decode()
    cells = poll(viewer, row).json()["cells"]
    for place in ("state", "usage", "worker", "waiting", "oldest", "origin"):
        text = cells[f"{row.pk}.{place}"]["text"]
        assert re.search(rf'data-slots="{row.pk}\.{place}"[^>]*>{re.escape(escape(text))}<', page), place
    assert cells[f"{row.pk}.state"] == {
        "text": "Waits for a worker",
        "attrs": {"data-state": "waits_for_worker"},
    }
    assert cells[f"{row.pk}.meter"]["attrs"]["value"] == "3"
    assert cells["tile.running"]["text"] == "3 / 0"


def test_a_poll_of_rows_has_the_tiles_only_where_nobody_needs_to_add_them_up(viewer: Client) -> None:
    row = in_use(tenant_queue(max_job=5), 3)
    assert "tile.running" not in poll(viewer, row).json()["cells"]
    assert poll(viewer).json()["cells"]["tile.running"]["text"] == "3 / 0"
    assert "tile.running" in poll(viewer, row).json()["cells"]


def test_a_poll_shows_what_has_changed_since(viewer: Client) -> None:
    row = tenant_queue(max_job=2)
    assert poll(viewer, row).json()["cells"][f"{row.pk}.usage"]["text"] == "0 / 2"
    in_use(row, 1)
    shared_rows.clear()
    assert poll(viewer, row).json()["cells"][f"{row.pk}.usage"]["text"] == "1 / 2"


def test_a_slot_of_a_job_that_has_not_begun_is_next_and_not_in_use(viewer: Client) -> None:
    row = in_use(tenant_queue(max_job=3), 1)
    waiting_job(row, state=State.QUEUED)
    TenantQueue.objects.update(current_job=2)
    cells = poll(viewer, row).json()["cells"]
    assert (cells[f"{row.pk}.usage"]["text"], cells[f"{row.pk}.queued"]["text"]) == ("1 / 3", "1")
    assert cells[f"{row.pk}.meter"]["attrs"]["aria-label"] == "1 of 3 slots in use"
    assert poll(viewer).json()["cells"]["tile.running"]["text"] == "1 / 0"


def test_the_list_is_sorted_by_what_is_in_use(viewer: Client) -> None:
    in_use(tenant_queue("one"), 1), in_use(tenant_queue("two", max_job=2), 2), tenant_queue("none", current_job=9)
    assert shown_by(viewer, "usage") == ["two", "one", "none"]


def shown_by(client: Client, column: str) -> list[str]:
    """The tenants in the order of a column, the largest first."""
    number = client.get(QUEUES).context["cl"].list_display.index(column)
    return [row.tenant for row in client.get(QUEUES, {"o": f"-{number}"}).context["cl"].result_list]


def test_the_worker_time_of_the_last_hour_and_its_part_of_the_queue_are_shown_and_sorted_by(viewer: Client) -> None:
    rows = [tenant_queue(name) for name in ("large", "small", "nothing")]
    for row, minutes in zip(rows, (30, 10), strict=False):
        ran(row, minutes)
    ran(tenant_queue("elsewhere", queue="reports"), 20)
    cells = poll(viewer, *rows).json()["cells"]
    texts = [cells[f"{row.pk}.worker"]["text"] for row in rows]
    assert texts == ["30 min (75%)", "10 min (25%)", words.NOTHING]
    assert shown_by(viewer, "worker_time") == ["large", "elsewhere", "small", "nothing"]


def test_parts_of_the_worker_time_are_all_of_it_at_every_moment(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the rows say of an hour of jobs is read anew before the worker time of all is."""
    clock = SimpleNamespace(monotonic=lambda: 1000.0)
    monkeypatch.setattr(snapshots, "time", clock)
    large, small = tenant_queue("large"), tenant_queue("small")
    ran(large, 30), ran(small, 10)

    def told() -> list[str]:
        cells = poll(boss, large, small).json()["cells"]
        return [cells[f"{row.pk}.worker"]["text"] for row in (large, small)]

    before, after = ["30 min (75%)", "10 min (25%)"], ["30 min (50%)", "30 min (50%)"]
    assert told() == before
    ran(small, 20)
    seen = []
    for seconds in (1, 5, 9, 14, 15, 20):
        clock.monotonic = lambda now=1000.0 + seconds: now
        seen.append(told())
    assert seen == [before] * 4 + [after] * 2


def test_the_list_is_sorted_by_the_longest_wait_and_by_the_start_delay(viewer: Client) -> None:
    rows = {name: tenant_queue(name) for name in ("long", "late", "short", "nothing")}
    for name, waits, delay in (("long", 900, 1), ("late", 60, 300), ("short", 5, 20)):
        age(waiting_job(rows[name]), enqueued_at=waits)
        for place in range(20):  # of twenty the nineteenth counts
            job = waiting_job(rows[name], state=State.FINISHED, attempt=1)
            age(job, enqueued_at=60 + (delay if place else 9000), started_at=60, ended_at=30)
    assert shown_by(viewer, "oldest_wait") == ["long", "late", "short", "nothing"]
    assert shown_by(viewer, "start_delay") == ["late", "short", "long", "nothing"]


START_DELAY = 10
"""The place of that column, which alone asks for what the page shows of its own rows only, of all of them."""


@pytest.mark.parametrize("number", range(1, 16))
def test_an_order_takes_at_most_one_query_more_and_none_while_that_answer_is_shared(boss: Client, number: int) -> None:
    for name in ("one", "two", "three"):
        waiting_job(tenant_queue(name))
    boss.get(QUEUES)
    with CaptureQueriesContext(connection) as unsorted:
        boss.get(QUEUES)
    counts = []
    for _ in range(2):
        with CaptureQueriesContext(connection) as captured:
            boss.get(QUEUES, {"o": f"-{number}"})
        counts.append(len(captured))
    first, later = counts
    assert first - len(unsorted) == (1 if number == START_DELAY else 0)
    assert later == len(unsorted) <= 9


def ran(row: TenantQueue, minutes: float) -> None:
    """A job that ended a minute ago and took so long, and a second."""
    end = timezone.now() - timedelta(minutes=1)
    began = end - timedelta(minutes=minutes, seconds=1)
    waiting_job(row, state=State.FINISHED, attempt=1, enqueued_at=began, started_at=began, ended_at=end)


def test_twenty_viewers_cost_one_snapshot_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(monotonic=lambda: 1000.0)
    monkeypatch.setattr(snapshots, "time", clock)
    rows = [tenant_queue(str(number)) for number in range(5)]
    viewers = [signed_in("view_tenantqueue") for _ in range(20)]

    def queries_of_all() -> int:
        with CaptureQueriesContext(connection) as captured:
            for client in viewers:
                assert poll(client, *rows).status_code == 200
                assert poll(client).status_code == 200
        return sum('"tenant_slots_' in query["sql"] for query in captured)

    assert queries_of_all() == 6  # three for the rows, two for the tiles, one for all worker time
    assert queries_of_all() == 0
    clock.monotonic = lambda: 1001.0
    assert queries_of_all() == 1  # what an hour of jobs came to is at hand, and the tiles
    clock.monotonic = lambda: 1005.0
    assert queries_of_all() == 5


def test_what_runs_now_is_told_at_once_and_an_hour_of_jobs_five_seconds_later(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(monotonic=lambda: 1000.0)
    monkeypatch.setattr(snapshots, "time", clock)
    row = tenant_queue()

    def told() -> tuple[str, str]:
        found = poll(boss, row).json()["cells"]
        return found[f"{row.pk}.running"]["text"], found[f"{row.pk}.failed"]["text"]

    assert told() == ("0", "0")
    waiting_job(row, state=State.RUNNING, started_at=timezone.now(), beat_at=timezone.now(), beats=True)
    waiting_job(row, state=State.FAILED, ended_at=timezone.now())
    clock.monotonic = lambda: 1001.0
    assert told() == ("1", "0")
    clock.monotonic = lambda: 1005.0
    assert told() == ("1", "1"), "it never started"


def test_an_answer_that_the_viewer_has_is_not_sent_again(viewer: Client) -> None:
    row = tenant_queue()
    first = poll(viewer, row)
    again = viewer.get(LIVE, {"rows": row.pk}, headers={"If-None-Match": first["ETag"]})
    assert (again.status_code, again.content) == (304, b"")
    TenantQueue.objects.update(paused=True)
    shared_rows.clear()
    changed = viewer.get(LIVE, {"rows": row.pk}, headers={"If-None-Match": first["ETag"]})
    assert changed.status_code == 200


@pytest.mark.parametrize(("asked", "every"), [("1", 2), ("0", 2), ("-5", 5), ("x", 5), ("30", 30), ("", 5)])
def test_nobody_polls_more_often_than_every_two_seconds(viewer: Client, asked: str, every: int) -> None:
    assert poll(viewer, every=asked).json()["every"] == every


@pytest.mark.parametrize("rows", ["", "0", "abc,,1e9", "9" * 40, "-1", "1;DROP", "\0"])
def test_invalid_rows_are_left_out(viewer: Client, rows: str) -> None:
    response = viewer.get(LIVE, {"rows": rows})
    assert all(key.startswith("tile.") for key in response.json()["cells"])


def test_staff_who_may_not_view_may_not_poll() -> None:
    assert poll(signed_in("view_tenantjob")).status_code == 403
    assert poll(Client()).status_code == 302


def test_polling_only_takes_get(viewer: Client) -> None:
    assert viewer.post(LIVE).status_code == 405


def test_the_list_is_few_queries_even_for_staff_with_single_permissions() -> None:
    operator = signed_in("view_tenantqueue", "pause_tenantqueue", "set_limit_tenantqueue")
    for number in range(30):
        waiting_job(tenant_queue(str(number)))
    operator.get(QUEUES)
    with CaptureQueriesContext(connection) as captured:
        operator.get(QUEUES)
    assert len(captured) <= 12, [query["sql"][:120] for query in captured]


@pytest.mark.parametrize(
    ("state", "found"),
    [("paused", {"p"}), ("waits_for_worker", {"w"}), ("at_limit", {"l"}), ("idle", {"i"}), ("stale", set())],
)
def test_the_list_can_be_filtered_by_state(viewer: Client, state: str, found: set[str]) -> None:
    tenant_queue("p", paused=True), tenant_queue("i")
    waiting_job(tenant_queue("w")), waiting_job(in_use(tenant_queue("l"), 1))
    response = viewer.get(QUEUES, {"state": state})
    assert {row.tenant for row in response.context["cl"].result_list} == found


HOSTILE_NAMES = [HOSTILE, "a\r\nSet-Cookie: b", "\u202egnp.exe", "x" * 200, '" onclick="alert(1)', "{{ 7 }}", "=1+1"]


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_a_hostile_name_is_text_on_the_live_pages(boss: Client, name: str) -> None:
    row = tenant_queue(name, max_job=1, limit_source="set", limit_set_by=HOSTILE)
    job = waiting_job(row, kwargs={name: name}, error=name)
    for page in (boss.get(QUEUES), boss.get(f"{QUEUES}{row.pk}/change/"), boss.get(f"{QUEUES}{row.pk}/limit/")):
        text = page.content.decode()
        assert "<script>alert" not in text
        assert 'onclick="alert' not in text
    assert "<script>alert" not in boss.get(f"/admin/tenant_slots/tenantjob/{job.pk}/change/").content.decode()
    answer = poll(boss, row)
    assert answer["Content-Type"] == "application/json"
    assert answer.json()["cells"][f"{row.pk}.origin"]["text"] == f"set by {HOSTILE}"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, words.NOTHING),
        (0.2, "< 1 s"),
        (7.9, "7 s"),
        (185, "3 min"),
        (3725, "1 h 2 min"),
        (200_000, "2 days"),
    ],
)
def test_a_wait_is_shown_in_coarse_steps(seconds: float | None, text: str) -> None:
    assert words.duration(seconds) == text


def test_a_chart_is_points() -> None:
    assert charts.line([0, 1, 2], 2, height=10) == "0,10 1,5 2,0"
    assert charts.steps([1, 1, 2, 2], 2, height=10) == "0,5 2,5 2,0 3,0"
    assert charts.steps([3], 3, height=10) == "0,0"


# --- a viewer of some tenants only ---------------------------------------------------------------------------------


def of_acme(site: admin.AdminSite, base: Any, model: Any) -> Any:
    class OnlyAcme(base):  # type: ignore[misc]
        def tenant_queues_for(self, request: Any) -> Any:
            return TenantQueue.objects.filter(tenant="acme")

    return OnlyAcme(model, site)


def asked(client: Client, path: str = "/", data: Any = None) -> Any:
    request = RequestFactory().get(path, data)
    request.user = client.get(QUEUES).context["user"]
    return request


def test_one_method_restricts_list_poll_tiles_and_jobs_to_some_tenants(boss: Client) -> None:
    mine, theirs = tenant_queue("acme"), tenant_queue("beta", current_job=1)
    job, other = waiting_job(mine), waiting_job(theirs)
    queues = of_acme(admin.site, TenantQueueAdmin, TenantQueue)
    jobs = of_acme(admin.site, TenantJobAdmin, TenantJob)
    request = asked(boss, data={"rows": f"{mine.pk},{theirs.pk}"})

    assert list(queues.get_queryset(request)) == [mine]
    assert list(jobs.get_queryset(request)) == [job]
    assert queues.get_object(request, str(theirs.pk)) is None
    assert jobs.get_object(request, str(other.pk)) is None
    cells = json.loads(queues.live_view(request).content)["cells"]
    assert f"{mine.pk}.state" in cells
    assert f"{theirs.pk}.state" not in cells
    cells = json.loads(queues.live_view(asked(boss)).content)["cells"]
    assert cells["tile.waiting"]["text"] == "1"


def test_so_do_twenty_who_see_the_same_tenants_only(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(monotonic=lambda: 1000.0)
    monkeypatch.setattr(snapshots, "time", clock)
    looks = []
    known = fleet.known
    monkeypatch.setattr(fleet, "known", lambda: looks.append("") or known())
    own = TenantQueue.objects.filter(tenant__startswith="own")
    monkeypatch.setattr(TenantQueueAdmin, "tenant_queues_for", lambda self, request: own.all())
    shown = [tenant_queue(f"own {number}") for number in range(5)]
    other = tenant_queue("other")
    waiting_job(other), waiting_job(shown[0])
    viewers = [signed_in("view_tenantqueue") for _ in range(20)]

    with CaptureQueriesContext(connection) as captured:
        for client in viewers:
            cells = poll(client).json()["cells"] | poll(client, *shown).json()["cells"]
            assert cells["tile.waiting"]["text"] == "1"
            assert "tile.waiting" in poll(client, *shown).json()["cells"], "no second request is needed for them"

    of_all = 1  # which of the rows are theirs
    assert sum('"tenant_slots_' in query["sql"] for query in captured) == 3 + 2 + of_all
    assert len(looks) == 1
    assert f"{other.pk}.state" not in poll(viewers[0], *shown, other).json()["cells"]

    clock.monotonic = lambda: 1001.0
    with CaptureQueriesContext(connection) as captured:
        for client in viewers:
            assert poll(client, *shown).status_code == 200
    assert sum('"tenant_slots_' in query["sql"] for query in captured) == 1 + of_all

    own = TenantQueue.objects.none()
    assert poll(viewers[0]).json()["cells"]["tile.waiting"]["text"] == "0"
    assert poll(viewers[0], *shown).json()["cells"].keys().isdisjoint(f"{row.pk}.state" for row in shown)
    own = TenantQueue.objects.filter(tenant="other")
    assert f"{other.pk}.state" in poll(viewers[0], *shown, other).json()["cells"]


def test_viewers_who_are_restricted_differently_share_nothing_of_whose_the_rows_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At one moment, with one set of rows, which each of them asks for as a whole; in either order."""
    monkeypatch.setattr(snapshots, "time", SimpleNamespace(monotonic=lambda: 1000.0))
    rows = {tenant: tenant_queue(tenant) for tenant in ("acme", "beta")}
    sight: dict[str, Any] = {
        **{tenant: TenantQueue.objects.filter(tenant=tenant) for tenant in rows},
        "both": TenantQueue.objects.filter(tenant__in=["acme", "beta"]),
        "nobody": TenantQueue.objects.none(),
        "all": None,
    }
    theirs = {**{tenant: {tenant} for tenant in rows}, "both": set(rows), "nobody": set(), "all": set(rows)}
    whose = "all"
    monkeypatch.setattr(TenantQueueAdmin, "tenant_queues_for", lambda self, request: sight[whose])
    client = signed_in("view_tenantqueue")
    for whose in (*sight, *reversed(sight)):
        cells = poll(client, *rows.values()).json()["cells"]
        assert {tenant for tenant, row in rows.items() if f"{row.pk}.state" in cells} == theirs[whose], whose


def test_stale_owners_and_missing_workers_are_an_alarm(boss: Client) -> None:
    waiting_job(tenant_queue(current_job=1), state=State.RUNNING, beats=True, beat_at="2020-01-01T00:00:00Z")
    cells = poll(boss).json()["cells"]
    assert cells["tile.stale"] == {"text": "1", "attrs": {"data-alarm": "yes"}}
    assert cells["tile.running"] == {"text": "1 / 0", "attrs": {"data-alarm": "yes"}}


def test_what_runs_is_shown_against_the_workers_that_are_alive_whatever_the_limits_allow(boss: Client) -> None:
    in_use(tenant_queue(max_job=50), 2)
    worker_on_record("a"), worker_on_record("b"), worker_on_record("c", "reports")
    assert poll(boss).json()["cells"]["tile.running"] == {"text": "2 / 3", "attrs": {"data-alarm": "no"}}


@override_settings(RQ_QUEUES={"imports": {"URL": "redis://127.0.0.1:1/0"}})
def test_a_redis_that_cannot_be_asked_leaves_the_page_standing(boss: Client) -> None:
    tenant_queue()
    assert boss.get(QUEUES).status_code == 200
    assert poll(boss).json()["cells"]["tile.running"]["text"] == "0 / \N{EN DASH}"


def test_a_row_that_is_deleted_while_the_list_is_made_is_called_deleted(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, gone = tenant_queue("kept"), tenant_queue("gone")
    measured = rows.measured

    def too_late(*asked: Any) -> Any:
        TenantQueue.objects.filter(pk=gone.pk).delete()
        return measured(*asked)

    monkeypatch.setattr(rows, "measured", too_late)
    page = boss.get(QUEUES).content.decode()
    assert f'data-slots="{gone.pk}.state" class="slots-pill" data-state="deleted">Deleted<' in page
    assert f'data-slots="{kept.pk}.usage"' in page
