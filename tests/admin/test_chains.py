"""Jobs that run after others, in the admin."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client, RequestFactory
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from tenant_slots.admin import TenantJobAdmin, reasons
from tenant_slots.models import JobDependency, State, TenantJob, TenantQueue
from tests import jobs
from tests.admin.site import QUEUES, asked, change_page, confirmed, messages_of, signed_in
from tests.factories import age, end_run, fresh, owner, running_job, somebody_sweeps, tenant_queue, waiting_job, work

pytestmark = pytest.mark.django_db(transaction=True)

JOBS = reverse("admin:tenant_slots_tenantjob_changelist")


def after(*awaited: TenantJob, tenant: str = "acme") -> TenantJob:
    return jobs.echo.using(after=awaited).enqueue(tenant, 1)


def page_of(client: Client, job: TenantJob) -> str:
    return client.get(change_page(job)).content.decode()


def test_the_page_of_a_job_has_links_to_those_it_runs_after_and_to_those_after_it(boss: Client) -> None:
    somebody_sweeps()
    a = jobs.echo.enqueue("acme", 1)
    b = after(a)
    c = after(b)
    page = page_of(boss, b)
    assert f"It runs after 1 job that has not ended yet. {a}" in page
    assert f'<a href="{change_page(a)}">{a}</a> · queued' in page
    assert f'<a href="{change_page(c)}">{c}</a> · scheduled' in page
    work()
    assert f'<a href="{change_page(a)}">{a}</a> · finished' in page_of(boss, b)


def test_that_of_any_other_job_has_no_such_lines(boss: Client) -> None:
    page = page_of(boss, jobs.echo.enqueue("acme", 1))
    assert "uns after" not in page
    assert "run after it" not in page


def test_many_are_counted(boss: Client) -> None:
    many = jobs.echo.enqueue_many([(("acme", number), {}) for number in range(25)])
    last = after(*many)
    with CaptureQueriesContext(connection) as queries:
        page = page_of(boss, last)
    assert "It runs after 25 jobs that have not ended yet." in page
    assert "and 5 other jobs" in page
    asked = [query["sql"] for query in queries if "jobdependency" in query["sql"]]
    assert len([sql for sql in asked if "has_dependencies" not in sql]) <= 4, (
        "whether there are any is asked with the job"
    )


class OfAcme(TenantJobAdmin):
    def tenant_queues_for(self, request: Any) -> Any:
        return TenantQueue.objects.filter(tenant="acme")


def test_who_sees_some_tenants_only_learns_the_number_of_the_others_jobs() -> None:
    a, other = jobs.echo.enqueue("acme", 1), jobs.record.enqueue("beta", "x", "")
    b = after(a, other)
    request = RequestFactory().get("/")
    request.user = User.objects.create(username="restricted", is_staff=True, is_superuser=True)
    model_admin = OfAcme(TenantJob, admin.site)
    job = model_admin.get_object(request, str(b.pk))
    assert job is not None
    summary = model_admin._summary(request, str(b.pk))
    shown = " ".join((*summary["slots_chains"], *summary["slots_why"]))
    assert str(a.uuid) in shown
    assert str(other.uuid) not in shown
    assert "record" not in shown
    assert "and 1 other job" in shown
    assert "It runs after 2 jobs" in shown
    assert str(other.uuid) in " ".join(reasons.why_waiting(b)), "who sees all tenants sees it"


def test_a_retry_of_a_whole_chain_starts_with_its_beginning(boss: Client) -> None:
    """The list has the newest job first: retried before the one that it runs after, it would run at once."""
    a = running_job(tenant_queue(), owner())
    b = after(a)
    c = after(b)
    end_run(a, state=State.FAILED)
    response = confirmed(boss, JOBS, "retry", c, b, a)
    assert messages_of(response) == ["3 jobs will run again."]
    assert [fresh(job).state for job in (a, b, c)] == [State.QUEUED, State.SCHEDULED, State.SCHEDULED]
    work()
    assert [fresh(job).state for job in (a, b, c)] == [State.FINISHED] * 3


def test_a_cancel_of_a_whole_chain_cancels_all_of_it(boss: Client) -> None:
    a = jobs.echo.enqueue("acme", 1)
    b = after(a)
    c = after(b)
    confirmed(boss, JOBS, "cancel", c, b, a)
    assert [fresh(job).state for job in (a, b, c)] == [State.CANCELED] * 3


def told(client: Client, url: str, action: str, *chosen: TenantJob | TenantQueue) -> list[str]:
    page, _ = asked(client, url, action, *chosen)
    return [text for text in page.context["effects"] if "run" in text and "after" in text]


ONE_MORE = "1 other job runs after these, and is canceled with the one that it runs after."
TWO_MORE = "2 other jobs run after these, and are canceled with those that they run after."


def test_the_page_that_asks_counts_the_jobs_that_are_canceled_with_those_that_were_chosen(boss: Client) -> None:
    a = waiting_job(tenant_queue())
    b = after(a)
    c = after(b, tenant="beta")
    anyhow = jobs.echo.using(after_any=True, after=[a]).enqueue("acme", 1)
    assert told(boss, JOBS, "cancel", a) == [TWO_MORE]
    assert told(boss, JOBS, "cancel", a, b) == [ONE_MORE]
    assert told(boss, JOBS, "cancel", a, b, c) == []
    assert told(boss, JOBS, "stop", a) == [], "it does not run"
    assert told(boss, QUEUES, "cancel_waiting", a.tenant_queue) == [TWO_MORE]
    confirmed(boss, JOBS, "cancel", a)
    assert [fresh(job).state for job in (b, c)] == [State.CANCELED] * 2
    assert fresh(anyhow).state != State.CANCELED


def test_so_does_the_page_that_asks_before_a_running_job_is_stopped(boss: Client) -> None:
    a = running_job(tenant_queue(), owner())
    after(a)
    assert told(boss, JOBS, "stop", a) == [ONE_MORE]


def test_behind_a_run_that_is_left_alone_nothing_is_counted() -> None:
    """Who may cancel jobs may not stop them, by that alone."""
    a, b = running_job(tenant_queue(), owner()), waiting_job(tenant_queue("beta"))
    after(a)
    after(b, tenant="beta")
    clerk = signed_in("view_tenantjob", "change_tenantjob")
    assert told(clerk, JOBS, "cancel", a) == []
    assert told(clerk, JOBS, "cancel", a, b) == [ONE_MORE]
    both = signed_in("view_tenantjob", "change_tenantjob", "stop_tenantjob")
    assert told(both, JOBS, "cancel", a, b) == [TWO_MORE]


def test_the_page_that_asks_before_a_slot_is_taken_counts_what_is_canceled_if_the_job_fails(boss: Client) -> None:
    a = running_job(tenant_queue(), owner())
    b = after(a)
    if_it_fails = "1 other job runs after these, and is canceled if the one that it runs after fails."
    assert told(boss, JOBS, "release", a) == [if_it_fails]
    clerk = signed_in("view_tenantjob", "release_tenantjob")
    assert told(clerk, JOBS, "release", a) == [], "it seems to be alive, and only with force it is not left alone"
    age(a, beat_at=3600)
    assert told(clerk, JOBS, "release", a) == [if_it_fails]
    confirmed(boss, JOBS, "release", a, force="on", reason="stuck")
    assert (fresh(a).state, fresh(b).state) == (State.FAILED, State.CANCELED)


def test_they_are_counted_in_one_query_however_long_the_chain_is(boss: Client) -> None:
    first = last = waiting_job(tenant_queue(max_job=0))
    for _ in range(20):
        last = after(last)
    with CaptureQueriesContext(connection) as queries:
        page, _ = asked(boss, JOBS, "cancel", first)
    assert "20 other jobs run after these" in page.content.decode()
    assert sum("jobdependency" in query["sql"] for query in queries) == 1


@pytest.mark.parametrize("key", ["", "ab" * 16], ids=["plain", "unique"])
def test_a_job_that_is_retried_with_the_one_that_it_runs_after_waits_for_it(key: str, boss: Client) -> None:
    tenant_queue(max_job=0)
    first = waiting_job(TenantQueue.objects.get(), unique_key=key)
    second = jobs.echo.using(after=[first], after_any=True).enqueue("acme", 1)
    TenantJob.objects.update(state=State.FAILED, ended_at=timezone.now())
    JobDependency.objects.update(is_open=False)
    confirmed(boss, QUEUES, "retry_failed", second.tenant_queue)
    assert (fresh(first).state, fresh(second).state) == (State.WAITING, State.SCHEDULED)
