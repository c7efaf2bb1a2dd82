"""Ended jobs are pruned as fast as they come, except those that the project keeps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.apps import apps
from django.db import connection, models
from django.db.models.signals import pre_delete

from tenant_slots.db.clock import in_seconds
from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.repair import bookmark, pruning, steps
from tenant_slots.repair.contact import Contact
from tenant_slots.repair.report import Report
from tests.factories import TASK, many_waiting, tenant_queue
from tests.plans import explained

pytestmark = pytest.mark.django_db(transaction=True)

LONG_AGO = 10**7


@pytest.fixture
def invoices(transactional_db: None, settings: Any) -> Iterator[Any]:
    """The models of a project's app that refer to jobs; the app is there for this test only."""
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "tests.invoices_app"]
    apps.clear_cache()  # Django does not when an app comes for the second time
    from tests.invoices_app import models as of_project

    tables = [of_project.Invoice, of_project.Note, of_project.Answer, of_project.Delivery]
    with connection.schema_editor() as editor:
        for table in tables:
            editor.create_model(table)
    yield of_project
    for table in reversed(tables):
        table.objects.all().delete()
    with connection.schema_editor() as editor:
        for table in reversed(tables):
            editor.delete_model(table)


@pytest.fixture
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "JOBS_PER_BATCH", 4)
    monkeypatch.setattr(pruning, "SECONDS_TO_PRUNE", 60)


def old_jobs(number: int) -> list[TenantJob]:
    """Jobs that ended long ago, a second after each other."""
    row = TenantQueue.objects.first() or tenant_queue()
    stored = TenantJob.objects.bulk_create(
        TenantJob(tenant_queue=row, task=TASK, state=State.FINISHED) for _ in range(number)
    )
    for position, job in enumerate(stored):
        TenantJob.objects.filter(pk=job.pk).update(ended_at=in_seconds(position - LONG_AGO))
    return list(stored)


def prune(contact: Contact | None = None) -> int:
    report = Report()
    steps.prune(report, contact or Contact())
    return report.pruned


def kept() -> set[int]:
    return set(TenantJob.objects.values_list("pk", flat=True))


@pytest.mark.usefixtures("_small_batches")
def test_one_sweep_goes_on_while_there_are_old_jobs_and_time() -> None:
    old_jobs(11)
    assert prune() == 11
    assert prune() == 0


@pytest.mark.usefixtures("_small_batches")
def test_when_its_time_is_over_it_leaves_the_rest_to_the_next_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "SECONDS_TO_PRUNE", 0)
    old_jobs(7)
    contact = Contact()
    assert [prune(contact), prune(contact), prune(contact)] == [4, 3, 0]


def test_without_old_jobs_it_asks_one_query(django_assert_num_queries: Any) -> None:
    tenant_queue()
    with django_assert_num_queries(1):
        prune()


@pytest.mark.usefixtures("_small_batches")
@pytest.mark.parametrize("keeps", ["Invoice", "Answer"])
def test_jobs_that_the_project_protects_are_passed_over(invoices: Any, keeps: str) -> None:
    jobs = old_jobs(12)
    protected = [*jobs[:5], jobs[8]]
    for job in protected:
        if keeps == "Invoice":
            invoices.Invoice.objects.create(job=job)
        else:
            invoices.Answer.objects.create(note=invoices.Note.objects.create(job=job))
    with pytest.raises(models.ProtectedError):  # control: the project does protect them
        TenantJob.objects.filter(pk=protected[0].pk).delete()
    assert prune() == 6
    assert kept() == {job.pk for job in protected}


@pytest.mark.usefixtures("_small_batches")
def test_what_goes_with_a_job_goes_and_what_can_do_without_it_stays(invoices: Any) -> None:
    jobs = old_jobs(6)
    for job in jobs:
        invoices.Note.objects.create(job=job)
        invoices.Delivery.objects.create(job=job)
    assert prune() == 6
    assert not invoices.Note.objects.exists()
    assert set(invoices.Delivery.objects.values_list("job", flat=True)) == {None}
    assert invoices.Delivery.objects.count() == 6


def no(job: TenantJob) -> Exception:
    return models.ProtectedError("the project keeps it", {job})


def by_mistake(job: TenantJob) -> Exception:
    return ValueError("the archive does not take it")


@pytest.fixture(params=[no])
def refused(request: pytest.FixtureRequest) -> Iterator[set[int]]:
    """Keys of jobs that a receiver of the project does not let go, by an error of its choice."""
    keys: set[int] = set()

    def refuse(*, instance: TenantJob, **_: Any) -> None:
        if instance.pk in keys:
            raise request.param(instance)

    pre_delete.connect(refuse, sender=TenantJob)
    yield keys
    pre_delete.disconnect(refuse, sender=TenantJob)


@pytest.mark.parametrize("refused", [no, by_mistake], indirect=True)
@pytest.mark.usefixtures("_small_batches")
def test_a_job_that_a_receiver_keeps_does_not_keep_the_others(refused: set[int]) -> None:
    jobs = old_jobs(10)
    refused |= {jobs[0].pk, jobs[1].pk, jobs[2].pk, jobs[3].pk, jobs[7].pk}
    assert prune() == 5
    assert kept() == refused


@pytest.mark.usefixtures("_small_batches")
def test_the_next_sweep_begins_behind_those_that_were_kept(
    refused: set[int], monkeypatch: pytest.MonkeyPatch, django_assert_num_queries: Any
) -> None:
    contact = Contact()
    refused |= {job.pk for job in old_jobs(6)}
    assert prune(contact) == 0
    with django_assert_num_queries(1):
        assert prune(contact) == 0
    refused.clear()
    assert prune(contact) == 0
    monkeypatch.setattr(bookmark, "SECONDS_KEPT", 0)
    assert prune(contact) == 6


def test_the_oldest_go_first_and_are_found_by_their_index() -> None:
    if connection.vendor != "postgresql":
        pytest.skip("reads PostgreSQL's plans")
    many_waiting(tenant_queue("waits"), 2000)
    old_jobs(20)
    plan = explained(pruning.old_jobs(None))
    assert "tenant_slots_ended" in plan, plan
