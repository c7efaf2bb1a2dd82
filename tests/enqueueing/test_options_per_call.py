"""Options of RQ that hold for single calls: ``using(timeout=, meta=, retry=)``."""

from __future__ import annotations

import pickle
from datetime import timedelta
from typing import Any

import django_rq
import pytest
from rq import Retry

from tenant_slots import tenant_job
from tenant_slots.exceptions import InvalidOption
from tenant_slots.models import State
from tests import jobs
from tests.factories import fresh, work

pytestmark = pytest.mark.django_db(transaction=True)

MEANINGLESS = (Retry(max=1, interval=[]), Retry(max=1.5), Retry(max=float("inf")))  # type: ignore[arg-type]
"""RQ takes them (2.12)."""


@tenant_job(
    "imports", tenant="tenant", timeout=600, meta={"team": "feeds"}, retry=Retry(max=5), description="an import"
)
def has_options(tenant: str) -> int:
    return jobs.timeout_of_run()


def test_a_timeout_holds_for_the_calls_that_were_given_it() -> None:
    given, other = has_options.using(timeout=7).enqueue("acme"), has_options.enqueue("beta")
    work()
    assert (fresh(given).result, fresh(other).result) == (7, 600)


def test_meta_replaces_that_of_the_decorator() -> None:
    has_options.using(meta={"upload": 7}).enqueue("acme")
    (rq_job,) = django_rq.get_queue("imports").jobs
    assert rq_job.meta == {"upload": 7}


def test_meta_takes_no_more_room_than_arguments_may(settings: Any) -> None:
    """Also where the setting is none, which is reported by a system check."""
    settings.TENANT_SLOTS = {"MAX_ARGS_BYTES": 14}
    assert has_options.using(meta={"upload": 77}).enqueue("acme").options["meta"] == {"upload": 77}
    with pytest.raises(InvalidOption, match=r'meta=.* 16 bytes; TENANT_SLOTS\["MAX_ARGS_BYTES"\] allows 14'):
        has_options.using(meta={"upload": 7777})
    settings.TENANT_SLOTS = {"MAX_ARGS_BYTES": "many"}
    has_options.using(meta={"upload": 7})


@pytest.mark.parametrize(("retry", "runs"), [(None, 1), (Retry(max=2, interval=0), 3)])
def test_a_retry_holds_for_the_calls_that_were_given_it(retry: Retry | None, runs: int) -> None:
    job = jobs.fail.using(retry=retry).enqueue("acme")
    work()
    assert (fresh(job).state, job.failures, job.attempt) == (State.FAILED, runs, runs)


def test_the_other_options_of_the_decorator_stay() -> None:
    job = has_options.using(timeout=7).using(meta={}).enqueue("acme")
    retry = {"max": 5, "intervals": [0]}
    assert fresh(job).options == {"timeout": 7, "meta": {}, "retry": retry, "description": "an import"}
    assert has_options.enqueue("acme").options["timeout"] == 600


def test_none_takes_an_option_of_the_decorator_away() -> None:
    job = has_options.using(retry=None, timeout=None, meta=None).enqueue("acme")
    assert fresh(job).options == {"description": "an import"}
    again = has_options.using(retry=None).using(retry=Retry(max=1)).enqueue("acme")
    assert again.options["retry"]["max"] == 1
    assert pickle.loads(pickle.dumps(has_options.using(retry=None))).enqueue("acme").options["timeout"] == 600


@tenant_job(
    "imports",
    tenant="tenant",
    expires=timedelta(hours=1),
    debounce=timedelta(minutes=1),
    max_wait=timedelta(minutes=5),
    unique_key=lambda tenant: tenant,
)
def waits_and_expires(tenant: str) -> None: ...


def test_none_takes_times_of_the_decorator_away() -> None:
    late = waits_and_expires.enqueue("acme")
    at_once = [waits_and_expires.using(debounce=None, expires=None).enqueue("acme") for _ in range(2)]
    work()
    assert [fresh(job).state for job in at_once] == [State.FINISHED] * 2
    assert [job.expires_at for job in at_once] == [None, None]
    assert (fresh(late).state, late.expires_at is None) == (State.SCHEDULED, False)
    far = waits_and_expires.using(max_wait=None).tenant_task
    assert (far.max_wait, far.debounce) == (None, timedelta(minutes=1))


def test_they_can_be_given_to_plain_rq() -> None:
    ways = pickle.loads(pickle.dumps(has_options.using(timeout=7, retry=Retry(max=1))))
    options = ways.enqueue("acme").options
    assert (options["timeout"], options["retry"]["max"], options["description"]) == (7, 1, "an import")


@pytest.mark.parametrize(
    "given",
    [
        {"timeout": "60"},
        {"timeout": 0},
        {"timeout": True},
        {"meta": []},
        {"meta": {"day": object()}},
        {"retry": 3},
        *({"retry": one} for one in MEANINGLESS),
    ],
    ids=lambda given: next(iter(given)),
)
def test_a_wrong_value_is_refused_at_once(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match=next(iter(given))):
        has_options.using(**given)


def test_a_retry_at_the_front_of_the_queue_is_refused_wherever_it_is_written() -> None:
    at_front = Retry(max=2, enqueue_at_front=True)
    function = has_options.tenant_task.function
    for write in (
        lambda: has_options.using(retry=at_front),
        lambda: tenant_job("imports", tenant="tenant", retry=at_front)(function),
        lambda: tenant_job("imports", tenant="tenant")(django_rq.job("imports", retry=at_front)(function)),
    ):
        with pytest.raises(InvalidOption, match="leave out enqueue_at_front"):
            write()
