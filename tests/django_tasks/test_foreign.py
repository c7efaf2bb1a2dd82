"""``@task`` over ``@tenant_job`` with another backend: told of where it gets no slot, given one where RQ calls it."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import django_rq
import pytest
from django.test import override_settings
from django.utils.functional import SimpleLazyObject
from rq.job import Job, JobStatus

from tenant_slots.checks import check_foreign_tasks
from tenant_slots.django_tasks import foreign
from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.tasks_backend import TenantSlotsBackend
from tenant_slots.workers import TenantSimpleWorker
from tests import jobs as decorated
from tests.django_tasks import backends
from tests.django_tasks.api import task
from tests.history import History

AWAITS = sys.version_info >= (3, 12)
"""Whether Django's Tasks see that a decorated ``async def`` function is one."""

FOREIGN = "tests.django_tasks.foreign_tasks"


class CallsTask(Job):
    """As the RQ job of the package ``django-tasks-rq``."""

    def _execute(self) -> Any:
        return self.func.call(*self.args, **self.kwargs)  # type: ignore[attr-defined]


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The module with a Task of this backend, which is imported anew."""
    sys.modules.pop(FOREIGN, None)
    with override_settings(TASKS={"default": {"BACKEND": request.param}}):
        yield __import__(FOREIGN, fromlist=["record"])
    sys.modules.pop(FOREIGN, None)


class OfRQ(backends.Foreign):
    """As the backend of the package ``django-tasks-rq``."""


OfRQ.__module__ = "django_tasks_rq.backend"


class OfProject(OfRQ):
    """With settings of its own."""


OF_RQ = f"{__name__}.OfRQ"
OTHER = "tests.django_tasks.backends.Foreign"
IMMEDIATE = "tests.django_tasks.backends.Immediate"
OURS = "tenant_slots.tasks_backend.TenantSlotsBackend"


@pytest.mark.parametrize("backend", [OTHER], indirect=True)
def test_a_check_names_the_task_and_its_backend(backend: Any) -> None:
    (warning,) = (warning for warning in check_foreign_tasks() if warning.obj == f"{FOREIGN}.record")
    assert warning.id == "tenant_slots.W006"
    assert "'default'" in warning.msg
    assert OURS in str(warning.hint)


@pytest.fixture
def elsewhere() -> Iterator[ModuleType]:
    """A module that is imported and is not the one of the function."""
    module = ModuleType("tests.django_tasks.elsewhere")
    sys.modules[module.__name__] = module
    yield module
    del sys.modules[module.__name__]


@pytest.mark.parametrize("backend", [OTHER], indirect=True)
def test_a_check_names_a_task_that_is_not_beside_its_function(backend: Any, elsewhere: ModuleType) -> None:
    vars(elsewhere).update(imported=backend.record, add=task(decorated.add))
    named = [warning.obj for warning in check_foreign_tasks()]
    assert f"{elsewhere.__name__}.add" in named
    assert f"{FOREIGN}.record" in named
    assert f"{elsewhere.__name__}.imported" not in named, "it is named once, where its function is"


@pytest.mark.parametrize("backend", [OTHER], indirect=True)
def test_a_check_looks_into_no_object_and_loads_no_module(backend: Any, elsewhere: ModuleType) -> None:
    """Which may ask a database, or have effects."""

    def asked() -> Any:
        raise AssertionError("a lazy object was asked what it is")

    class Lazy(ModuleType):
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError("a lazy module was asked for what it has")

    names = f"{elsewhere.__name__}.lazy", f"{elsewhere.__name__}.none"
    vars(elsewhere)["setting"] = SimpleLazyObject(asked)
    sys.modules |= dict(zip(names, (Lazy("lazy"), None), strict=True))  # type: ignore[dict-item]
    try:
        assert f"{FOREIGN}.record" in {warning.obj for warning in check_foreign_tasks()}
    finally:
        for name in names:
            del sys.modules[name]


@pytest.mark.parametrize("backend", [OURS, IMMEDIATE], indirect=True)
def test_no_check_speaks_of_a_task_that_gets_a_slot_or_runs_here(backend: Any) -> None:
    assert check_foreign_tasks() == []


@pytest.mark.parametrize("backend", [OF_RQ, f"{__name__}.OfProject"], indirect=True)
def test_no_check_speaks_of_a_backend_that_is_made_of_one_whose_rq_jobs_call_the_function(backend: Any) -> None:
    named = [warning.obj for warning in check_foreign_tasks()]
    assert named == ([f"{FOREIGN}.record_slowly"] if AWAITS else []), "but of an asynchronous one, which they await"


@pytest.mark.parametrize("backend", [OTHER], indirect=True)
def test_a_call_through_another_backend_is_logged_when_it_is_enqueued(
    backend: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Result:
        id, task = "17", backend.record

    with caplog.at_level(logging.WARNING, "tenant_slots"):
        foreign.warn(sender=TenantSlotsBackend, task_result=Result)
        foreign.warn(sender=backends.Immediate, task_result=Result)
        assert caplog.messages == []
        foreign.warn(sender=backends.Foreign, task_result=Result)
    assert caplog.messages == [f"17, a call of {FOREIGN}.record, will run without a slot"]


@pytest.mark.parametrize("backend", [OTHER], indirect=True)
@pytest.mark.parametrize(("limit", "state"), [(1, State.FINISHED), (0, State.WAITING)])
@pytest.mark.django_db(transaction=True)
def test_a_task_that_another_backend_has_rq_call_takes_its_slot(
    backend: Any, limit: int, state: State, history: History, no_workers: None
) -> None:
    TenantQueue.objects.create(tenant="acme", queue="imports", max_job=limit)
    queue = django_rq.get_queue("imports", job_class=CallsTask)
    rq_job = queue.enqueue_call(f"{FOREIGN}.record", args=("acme", history.path))
    TenantSimpleWorker([queue], connection=queue.connection, job_class=CallsTask).work(
        burst=True, logging_level="ERROR"
    )
    job = TenantJob.objects.get(rq_job_id=rq_job.id)
    assert job.state == state
    assert len(history.started()) == limit
    assert [result.return_value for result in rq_job.results()] == ["done"] * limit, "the last one is the Task's"


@pytest.mark.skipif(not AWAITS, reason="before Python 3.12 such a Task's function is called as any other")
@pytest.mark.parametrize("backend", [OTHER], indirect=True)
@pytest.mark.django_db(transaction=True)
def test_an_asynchronous_task_that_rq_calls_is_awaited_and_runs_without_a_slot_as_it_is_told(
    backend: Any, history: History, no_workers: None, caplog: pytest.LogCaptureFixture
) -> None:
    TenantQueue.objects.create(tenant="acme", queue="imports", max_job=0)
    queue = django_rq.get_queue("imports", job_class=CallsTask)
    rq_job = queue.enqueue_call(f"{FOREIGN}.record_slowly", args=("acme", history.path))
    TenantSimpleWorker([queue], connection=queue.connection, job_class=CallsTask).work(
        burst=True, logging_level="ERROR"
    )
    assert rq_job.get_status(refresh=True) == JobStatus.FINISHED
    assert len(history.started()) == 1
    assert not TenantJob.objects.exists()

    class Result:
        id, task = "17", backend.record_slowly

    foreign.warn(sender=OfRQ, task_result=Result)
    assert caplog.messages == [f"17, a call of {FOREIGN}.record_slowly, will run without a slot"]
