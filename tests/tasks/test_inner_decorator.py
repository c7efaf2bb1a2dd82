"""What RQ's decorator inside ours was given is taken over, or refused at import: nothing of it is dropped silently."""

from __future__ import annotations

from typing import Any

import django_rq
import pytest
from django.conf import settings
from django.test import override_settings
from rq import Callback, Queue, Retry
from rq.decorators import job as rq_decorator

from tenant_slots import tenant_job
from tenant_slots.exceptions import ImproperJob, InvalidOption
from tenant_slots.models import TenantJob
from tests import jobs
from tests.factories import work


def told(job: Any, connection: Any, type: Any, value: Any, traceback: Any) -> None: ...


def decorated(inner: Any, queue: str = "reports", **own: Any) -> Any:
    def export(tenant: str) -> str:
        return tenant

    export.__qualname__ = "export"
    return tenant_job(queue, tenant="tenant", **own)(inner(export))


def rq_options(*inner: Any, own: dict[str, Any] | None = None, **given: Any) -> dict[str, Any]:
    task = decorated(django_rq.job(*inner, **given), **(own or {})).tenant_task
    return dict(task.stored_options)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {}),
        ({"timeout": 7}, {"timeout": 7}),
        ({"timeout": "2m"}, {"timeout": 120}),
        ({"timeout": -1}, {"timeout": -1}),
        ({"result_ttl": 9}, {"result_ttl": 9}),
        ({"failure_ttl": "1h"}, {"failure_ttl": 3600}),
        ({"description": "an export"}, {"description": "an export"}),
        ({"meta": {"team": "blue"}}, {"meta": {"team": "blue"}}),
        ({"retry": Retry(max=2, interval=[1, 60])}, {"retry": {"max": 2, "intervals": [1, 60]}}),
    ],
)
def test_what_ours_can_do_is_taken_over(given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert rq_options("reports", **given) == expected


@pytest.mark.parametrize(
    ("given", "expected"), [({}, {}), ({"result_ttl": 60}, {}), ({"result_ttl": 500}, {"result_ttl": 500})]
)
def test_a_result_is_kept_for_as_long_as_was_said_also_where_the_queue_has_a_default(
    given: dict[str, Any], expected: dict[str, Any]
) -> None:
    queue = {**settings.RQ_QUEUES["reports"], "DEFAULT_RESULT_TTL": 60}
    with override_settings(RQ_QUEUES={**settings.RQ_QUEUES, "reports": queue}):
        assert rq_options("reports", **given) == expected


def test_what_rqs_own_decorator_was_not_given_says_nothing_against_ours() -> None:
    connection = django_rq.get_connection("reports")
    task = decorated(rq_decorator("reports", connection=connection), result_ttl=9).tenant_task
    assert task.stored_options == {"result_ttl": 9}


def test_a_queue_that_rq_does_not_have_is_for_the_system_check() -> None:
    connection = django_rq.get_connection("reports")
    assert decorated(rq_decorator("exports", connection=connection), queue="exports").tenant_task.queue == "exports"


def test_both_can_say_the_same() -> None:
    retry = {"max": 2, "intervals": [5]}
    own = {"timeout": 60, "retry": Retry(max=2, interval=5)}
    assert rq_options("reports", timeout="1m", retry=Retry(2, 5), own=own) == {"timeout": 60, "retry": retry}


@pytest.mark.parametrize(
    ("given", "own", "words"),
    [
        ({"timeout": 7}, {"timeout": 8}, ["timeout=7", "timeout=8"]),
        ({"retry": Retry(1)}, {"retry": Retry(2)}, ["retry="]),
        ({"ttl": 60}, {}, ["ttl=60"]),
        ({"at_front": True}, {}, ["at_front=True", "priority"]),
        ({"depends_on": ["another"]}, {}, ["depends_on="]),
        ({"on_failure": Callback(told)}, {}, ["on_failure=", "on_failure of @tenant_job"]),
        ({"on_success": Callback(told)}, {}, ["on_success=", "on_success of @tenant_job"]),
        ({"on_stopped": Callback(told)}, {}, ["on_stopped=", "job_ended"]),
    ],
)
def test_what_would_be_dropped_is_refused_at_import(
    given: dict[str, Any], own: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ImproperJob) as raised:
        rq_options("reports", own=own, **given)
    assert [word for word in [*words, "@job", "export"] if word not in str(raised.value)] == []


def test_another_queue_is_refused_at_import() -> None:
    """Without any it is RQ's default."""
    for inner in (django_rq.job("imports"), django_rq.job(django_rq.get_queue("imports")), django_rq.job):
        with pytest.raises(ImproperJob, match=r"queue '(imports|default)'.*'reports'"):
            decorated(inner)


class OddQueue(Queue):
    """A queue of a project's own class."""


def test_a_class_of_queues_is_refused_at_import() -> None:
    connection = django_rq.get_connection("reports")
    assert decorated(rq_decorator("reports", connection, queue_class=Queue)).tenant_task.queue == "reports"
    with pytest.raises(ImproperJob, match=r"OddQueue .*would be lost; set QUEUE_CLASS"):
        decorated(rq_decorator("reports", connection, queue_class=OddQueue))


def test_a_value_that_ours_refuses_is_refused_from_there_too() -> None:
    with pytest.raises(InvalidOption, match="meta="):
        rq_options("reports", meta={"when": object()})


def test_rqs_own_decorator_is_known_too() -> None:
    connection = django_rq.get_connection("reports")
    task = decorated(rq_decorator("reports", connection=connection, timeout=11)).tenant_task
    assert task.stored_options == {"timeout": 11}


def test_a_function_with_a_delay_of_its_own_has_none_of_these() -> None:
    def other(function: Any) -> Any:
        function.delay = lambda: None
        return function

    assert decorated(other).tenant_task.stored_options == {}


@pytest.mark.django_db(transaction=True)
def test_a_job_has_what_the_inner_decorator_was_given() -> None:
    job = jobs.inside_ours.enqueue("acme")
    work()
    job.refresh_from_db()
    assert (job.options["timeout"], job.result) == (77, 77)


@pytest.mark.django_db(transaction=True)
def test_outside_of_ours_it_keeps_what_it_was_given() -> None:
    rq_job = jobs.outside_ours.delay("acme")
    assert (rq_job.timeout, rq_job.failure_callback_timeout is not None) == (78, True)
    work()
    assert rq_job.return_value() == 78
    assert TenantJob.objects.get().rq_job_id == rq_job.id
