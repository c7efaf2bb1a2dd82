"""Which filters an address may name, and what else it may ask: only what the pages themselves offer."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from django.contrib import admin
from django.db import connection
from django.test import Client, RequestFactory
from django.test.utils import CaptureQueriesContext

from tenant_slots.admin import TenantJobAdmin, search
from tenant_slots.admin.lists import BY_KEY
from tenant_slots.admin.search import search_jobs
from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.models.tenant_job import rq_id_of
from tests.admin.site import JOBS, QUEUES, change_page, signed_in
from tests.factories import many_waiting, tenant_queue, waiting_job
from tests.plans import rows_read

pytestmark = pytest.mark.django_db

LISTS = {TenantJob: JOBS, TenantQueue: QUEUES}
LOOKUPS = ("", "__exact", "__startswith", "__regex", "__contains", "__gt", "__isnull", "__api_key__startswith")

OFFERED = {
    TenantJob: {"state", "tenant_queue"},
    TenantQueue: {"tenant", "queue", "paused"},
}
"""The fields by which a list may be filtered, from its filters or by a link."""


def names(model: Any) -> list[str]:
    return [name for field in model._meta.get_fields() for name in {field.name, getattr(field, "attname", field.name)}]


def test_a_masked_value_is_not_guessed_letter_by_letter(viewer: Client) -> None:
    waiting_job(tenant_queue(), stats={"api_key": "s3cret"}, kwargs={"token": "s3cret"}, error="s3cret")
    for guess in ("stats__api_key__startswith=s", "error__contains=s3", "kwargs__token__startswith=s", "token__gt=a"):
        assert viewer.get(f"{JOBS}?{guess}").status_code == 400, guess


@pytest.mark.parametrize("model", LISTS)
@pytest.mark.parametrize("lookup", LOOKUPS)
def test_no_field_but_those_of_the_filters_is_looked_up(boss: Client, model: Any, lookup: str) -> None:
    waiting_job(tenant_queue())
    for name in names(model):
        if name.removesuffix("_id") not in OFFERED[model]:
            assert boss.get(f"{LISTS[model]}?{name}{lookup}=a").status_code == 400, name + lookup


@pytest.mark.parametrize(
    "path",
    ["tenant_queue__rest_reason__startswith", "tenant_queue__jobs__error__contains", "tenant_queue__tenant__startswith",
     "tenant_queue__queue__regex", "state__regex"],
)  # fmt: skip
def test_no_path_leads_on_from_a_filter(boss: Client, path: str) -> None:
    assert boss.get(f"{JOBS}?{path}=a").status_code == 400


def test_every_list_of_ours_has_the_allow_list() -> None:
    ours = [one for one in admin.site._registry.values() if one.opts.app_label == "tenant_slots"]
    request = RequestFactory().get("/")
    assert {one.model for one in ours} >= {TenantJob, TenantQueue}
    assert [one for one in ours if one.lookup_allowed("pk__gt", "1", request)] == []
    control = admin.ModelAdmin(TenantJob, admin.site)
    assert control.lookup_allowed("stats__api_key__startswith", "s", request)


@pytest.mark.parametrize("field", ["token", "uuid", "stats", "tenant_queue"])
def test_a_popup_names_no_other_field_of_the_object(boss: Client, field: str) -> None:
    assert boss.get(f"{JOBS}?_popup=1&_to_field={field}").status_code == 400
    assert boss.get(f"{JOBS}?_popup=1&_to_field=id").status_code == 200


def test_the_job_list_is_sorted_by_no_column_whatever_the_address_says(boss: Client) -> None:
    jobs = [waiting_job(tenant_queue("a")), waiting_job(tenant_queue("b"), priority=9)]
    for order in ("o=7", "o=-7", "o=5.7", "o=x"):
        assert list(boss.get(f"{JOBS}?{order}").context["cl"].result_list) == jobs[::-1], order


def test_the_filters_of_a_projects_own_admin_are_allowed_with_what_they_send() -> None:
    class Themed(TenantJobAdmin):
        list_filter = (*TenantJobAdmin.list_filter, "priority", ("kind", admin.ChoicesFieldListFilter))
        date_hierarchy = "enqueued_at"

    themed, request = Themed(TenantJob, admin.site), RequestFactory().get("/")
    allowed = ("priority", "priority__isnull", "kind__exact", "enqueued_at__year", "enqueued_at__day", "state__exact")
    assert [name for name in allowed if not themed.lookup_allowed(name, "1", request)] == []
    refused = ("priority__regex", "enqueued_at__regex", "attempt", "error__contains")
    assert [name for name in refused if themed.lookup_allowed(name, "1", request)] == []


class RangeFilter(admin.FieldListFilter):
    """As those of some themes, with parameters that are no lookups."""

    def expected_parameters(self) -> list[str | None]:
        return [f"{self.field_path}_from", f"{self.field_path}_to"]

    def has_output(self) -> bool:
        return False


def test_a_filter_with_parameters_of_its_own_is_allowed_these() -> None:
    class Themed(TenantJobAdmin):
        list_filter = (("attempt", RangeFilter),)

    themed, request = Themed(TenantJob, admin.site), RequestFactory().get("/")
    assert themed.lookup_allowed("attempt_from", "1", request)
    assert themed.lookup_allowed("attempt_to", "1", request)
    assert not themed.lookup_allowed("attempt__gte", "1", request)
    assert not themed.lookup_allowed("attempt", "1", request)


def test_not_even_a_projects_own_filter_opens_the_large_fields() -> None:
    class Careless(TenantJobAdmin):
        list_filter = ("error",)

    careless = Careless(TenantJob, admin.site)
    assert not careless.lookup_allowed("error", "x", RequestFactory().get("/"))


NUL = [
    (JOBS, "q=%00"), (JOBS, "state__exact=%00"), (JOBS, "tenant=%00"), (JOBS, "tenant_queue__queue=%00"),
    (JOBS, "p=%00"), (JOBS, "o=%00"), (QUEUES, "q=%00"), (QUEUES, "queue=%00"), (QUEUES, "state=%00"),
    (QUEUES, "tenant__exact=%00"), (QUEUES, "paused__exact=%00"), (QUEUES, "live=%00"), (JOBS, "%00=1"),
]  # fmt: skip


@pytest.mark.parametrize(("url", "query"), NUL)
def test_a_nul_in_an_address_is_no_error_of_the_server(boss: Client, url: str, query: str) -> None:
    waiting_job(tenant_queue())
    assert boss.get(f"{url}?{query}").status_code in (200, 302, 400)


@pytest.mark.parametrize(("url", "query"), [(JOBS, "state__exact=%00"), (QUEUES, "queue=%00"), (JOBS, "state=a%00b")])
def test_a_filter_by_a_nul_matches_nothing(boss: Client, url: str, query: str) -> None:
    waiting_job(tenant_queue())
    response = boss.get(f"{url}?{query}")
    assert response.status_code == 400 or list(response.context["cl"].result_list) == []


def test_a_nul_in_the_addresses_of_other_pages_is_no_error_of_the_server(boss: Client) -> None:
    row = tenant_queue()
    pages = [
        f"{change_page(row)}?span=%00",
        f"{change_page(row)}?_changelist_filters=state%3D%2500",
        f"{QUEUES}live/?rows=%00&every=%00",
        f"{QUEUES}%00/change/",
        f"{QUEUES}%00/limit/",
        f"{JOBS}%00/change/",
    ]
    assert {page for page in pages if boss.get(page).status_code >= 500} == set()


TOO_LARGE = ["9" * 19, "-" + "9" * 19, "9" * 40, "9" * 4000]
"""For a primary key."""


@pytest.mark.parametrize("number", TOO_LARGE, ids=len)
@pytest.mark.parametrize("parameter", ["tenant_queue__exact", "tenant_queue__id__exact"])
def test_a_filter_by_a_key_that_no_row_can_have_matches_nothing(boss: Client, parameter: str, number: str) -> None:
    """SQLite refuses to look for it."""
    waiting_job(tenant_queue())
    assert list(boss.get(JOBS, {parameter: number}).context["cl"].result_list) == []


@pytest.mark.parametrize("number", TOO_LARGE, ids=len)
def test_a_key_that_no_row_can_have_is_no_error_of_the_server(boss: Client, number: str) -> None:
    waiting_job(tenant_queue())
    for url in (JOBS, QUEUES):
        pages = [f"{url}?q={number}", f"{url}?p={number}", f"{url}{number}/change/", f"{url}live/?rows={number}"]
        assert {page for page in pages if boss.get(page).status_code >= 500} == set()
        sent = {"action": "retry" if url == JOBS else "pause", "_selected_action": [1], "confirm": "yes"}
        assert boss.post(url, {**sent, "chosen": number}).status_code < 500


@pytest.mark.parametrize("number", TOO_LARGE, ids=len)
def test_a_tenant_may_be_called_by_any_number(boss: Client, number: str) -> None:
    row = tenant_queue(number[:255])
    job = waiting_job(row)
    assert list(boss.get(JOBS, {"tenant": row.tenant}).context["cl"].result_list) == [job]
    assert list(boss.get(QUEUES, {"tenant__exact": row.tenant}).context["cl"].result_list) == [row]


# --- search by the first characters of an id -----------------------------------------------------------------------


def found(client: Client, term: str) -> set[Any]:
    return set(client.get(JOBS, {"q": term}).context["cl"].result_list)


def test_a_job_is_found_by_the_first_characters_of_its_id(boss: Client) -> None:
    row = tenant_queue()
    job = waiting_job(row, uuid="3fa81c00-9d6e-4c67-8d3b-000000000001")
    near = waiting_job(row, uuid="3fa82c00-9d6e-4c67-8d3b-000000000002")
    for term in ("3fa81c00", "3FA81", "3fa81c00-9", "3fa81c00-9d6e-4c67-8d3b-00000000000", "3fa81c009d6e"):
        assert found(boss, term) == {job}, term
    assert found(boss, "3fa8") == {job, near}
    assert found(boss, "3fa9") == set()


def test_a_job_is_found_by_the_id_that_rq_has_of_one_of_its_attempts(boss: Client) -> None:
    row = tenant_queue()
    jobs = [waiting_job(row) for _ in range(2)]
    for attempt in (1, 2, 10):
        for job in jobs:
            assert found(boss, rq_id_of(job.uuid, attempt, "")) == {job}
    assert found(boss, f"{uuid4()}-1") == set()


def test_what_looks_like_the_beginning_of_an_id_may_be_a_tenant_or_a_task(boss: Client) -> None:
    of_tenant = waiting_job(tenant_queue("shop-4711"))
    by_task = TenantJob.objects.create(tenant_queue=tenant_queue("b"), task="shop.feed2")
    by_word = TenantJob.objects.create(tenant_queue=tenant_queue("c"), task="shop.cafe")
    by_id = waiting_job(tenant_queue("d"), uuid="cafe1c00-9d6e-4c67-8d3b-000000000001")
    assert found(boss, "4711") == {of_tenant}
    assert found(boss, "feed2") == {by_task}
    assert found(boss, "cafe") == {by_word, by_id}


@pytest.mark.skipif(connection.vendor != "postgresql", reason="about the plans of PostgreSQL")
@pytest.mark.parametrize("term", ["3fa8", "3fa81c00", "3fa81c00-9d6e-4"])
def test_the_first_characters_of_an_id_are_looked_up_in_an_index(term: str) -> None:
    many_waiting(tenant_queue(), 3000)
    TenantJob.objects.update(state=State.FINISHED)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE tenant_slots_tenantjob")
    waiting_job(tenant_queue("b"), uuid="3fa81c00-9d6e-4c67-8d3b-000000000001")
    with CaptureQueriesContext(connection) as captured:
        plan = search_jobs(TenantJob.objects.order_by("-pk"), term, BY_KEY)[:100].explain()
    assert "uuid" in plan
    assert "Seq Scan" not in plan
    with connection.cursor() as cursor:  # nor where it is looked whether there are any
        for query in captured.captured_queries:
            if "tenant_slots_tenantjob" in query["sql"] and "EXPLAIN" not in query["sql"]:
                cursor.execute(f"EXPLAIN {query['sql']}")
                assert "Seq Scan on tenant_slots_tenantjob" not in str(cursor.fetchall())


def test_a_task_is_looked_for_among_the_latest_jobs_that_the_filters_leave(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "MOST_COMPARED", 3)
    rows = [tenant_queue(tenant) for tenant in ("acme", "beta")]
    old, of_state = (TenantJob.objects.create(tenant_queue=rows[0], task="shop.rare", state=state) for state in RARE)
    waiting_job(rows[0]), waiting_job(rows[0])
    new = TenantJob.objects.create(tenant_queue=rows[1], task="shop.rare")
    assert found(boss, "rare") == {new}
    assert set(boss.get(JOBS, {"q": "rare", "state__exact": "failed"}).context["cl"].result_list) == {of_state}
    assert found(boss, "acme") == set(rows[0].jobs.all()), "all jobs of a tenant"
    monkeypatch.setattr(search, "MOST_COMPARED", 50)
    assert found(boss, "rare") == {old, of_state, new}, "the control"


RARE = (State.FINISHED, State.FAILED)


def test_jobs_of_tenants_and_tasks_that_are_called_alike_are_found_together(boss: Client) -> None:
    of_tenant = waiting_job(tenant_queue("feeds"))
    by_task = TenantJob.objects.create(tenant_queue=tenant_queue("b"), task="shop.feeds")
    waiting_job(tenant_queue("c"))
    assert found(boss, "feeds") == {of_tenant, by_task}


def test_an_action_on_all_takes_what_the_search_shows(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "MOST_COUNTED", 2)
    row = tenant_queue("acme")
    jobs = [waiting_job(row) for _ in range(3)]
    assert found(boss, "acme") == set(jobs[1:])
    sent = {"action": "cancel", "_selected_action": [jobs[2].pk], "select_across": "1"}
    assert "This affects 2 objects." in boss.post(f"{JOBS}?q=acme", sent).content.decode()


@pytest.mark.skipif(connection.vendor != "postgresql", reason="about the plans of PostgreSQL")
def test_a_search_reads_no_more_jobs_than_it_says(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    many_waiting(tenant_queue("acme"), 100)
    many_waiting(tenant_queue("beta"), 3000)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE tenant_slots_tenantjob")
    monkeypatch.setattr(search, "MOST_COMPARED", 100)
    assert most_read_by(boss, "no such task") <= 101
    assert most_read_by(boss, "acme") <= 201
    monkeypatch.setattr(search, "MOST_COMPARED", 50_000)
    assert most_read_by(boss, "no such task") >= 3000, "the control"


def most_read_by(client: Client, term: str) -> float:
    """How many jobs the query of a search reads that reads the most."""
    with CaptureQueriesContext(connection) as captured:
        client.get(JOBS, {"q": term})
    asked = [query["sql"] for query in captured.captured_queries if "tenant_slots_tenantjob" in query["sql"]]
    read = []
    with connection.cursor() as cursor:
        for sql in asked:
            cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}")
            ((plans,),) = cursor.fetchall()
            read.append(rows_read(plans[0]["Plan"]))
    return max(read)


def test_a_viewer_of_some_tenants_finds_ids_of_theirs_only() -> None:
    client = signed_in("view_tenantjob")
    job = waiting_job(tenant_queue(), uuid="3fa81c00-9d6e-4c67-8d3b-000000000001")
    assert found(client, "3fa8") == {job}
