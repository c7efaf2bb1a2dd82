"""The JSON status of a job: closed until the project opens it, and the same answer to everybody it is not for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from uuid import uuid4

import django_rq
import pytest
from django.conf import settings
from django.core.exceptions import PermissionDenied
from django.db import OperationalError, ProgrammingError, connection, connections, transaction
from django.http import Http404, HttpRequest
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from tenant_slots import checks
from tenant_slots.exceptions import InvalidSetting
from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.repair import doctor
from tests.factories import another_process, running_job, tenant_queue, waiting_job

pytestmark = pytest.mark.django_db


def only_acme(request: HttpRequest, job: TenantJob) -> bool:
    return job.tenant_queue.tenant == "acme"


def truthy(request: HttpRequest, job: TenantJob) -> Any:
    return "yes"


def denies(request: HttpRequest, job: TenantJob) -> bool:
    raise PermissionDenied("not yours")


def hides(request: HttpRequest, job: TenantJob) -> bool:
    raise Http404("not yours")


def asks_for_a_row_that_is_missing(request: HttpRequest, job: TenantJob) -> bool:
    """As ``request.user.shop`` of somebody who has none."""
    raise TenantQueue.DoesNotExist("they have no shop")


async def asynchronous(request: HttpRequest, job: TenantJob) -> bool:
    return False


def by(decision: Callable[..., Any] | str) -> dict[str, str]:
    return {"MAY_VIEW_JOB": decision if isinstance(decision, str) else f"tests.test_views.{decision.__name__}"}


@pytest.fixture
def open_to_acme() -> Iterator[None]:
    with override_settings(TENANT_SLOTS=by(only_acme)):
        yield


def get(client: Client, uuid: object) -> Any:
    return client.get(reverse("job_status", args=[uuid]))


@pytest.mark.usefixtures("open_to_acme")
def test_it_tells_state_position_times_progress_and_stats_and_nothing_else(client: Client) -> None:
    row = tenant_queue(max_job=0)
    waiting_job(row)
    job = waiting_job(row, progress={"done": 40, "total": 100}, stats={"read": 40}, key="user-7")
    status = get(client, job.uuid).json()
    assert status.pop("enqueued_at")
    assert status == {
        "id": str(job.uuid),
        "queue": "imports",
        "state": "waiting",
        "position": 2,
        "started_at": None,
        "ended_at": None,
        "progress": {"done": 40, "total": 100},
        "stats": {"read": 40},
    }


@pytest.mark.usefixtures("open_to_acme")
def test_a_failed_job_tells_that_it_failed_and_not_why(client: Client) -> None:
    job = waiting_job(
        tenant_queue(), state=State.FAILED, error="Traceback: secret", result="secret", kwargs={"a": "secret"}
    )
    response = get(client, job.uuid)
    assert response.json()["state"] == "failed"
    assert b"secret" not in response.content


@pytest.mark.usefixtures("open_to_acme")
def test_a_running_job_has_no_position_and_costs_one_query(client: Client) -> None:
    job = running_job(tenant_queue(), another_process())
    with CaptureQueriesContext(connection) as queries:
        assert get(client, job.uuid).json()["position"] is None
    assert len(queries) == 1


@pytest.mark.usefixtures("open_to_acme")
def test_answers_are_not_cached(client: Client) -> None:
    job = waiting_job(tenant_queue())
    assert {get(client, uuid).headers["Cache-Control"] for uuid in (job.uuid, uuid4())} == {"no-store"}


def test_a_refused_method_is_not_cached_either(client: Client) -> None:
    """A cache may keep a 405 like a 404, and answer others with it who ask by GET."""
    for url in (reverse("job_status", args=[uuid4()]), reverse("health")):
        assert client.post(url).headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize("decision", ["", only_acme, truthy, denies, hides, asks_for_a_row_that_is_missing])
def test_who_may_not_see_a_job_cannot_tell_it_from_one_that_does_not_exist(client: Client, decision: Any) -> None:
    job = waiting_job(tenant_queue("other"))
    with override_settings(TENANT_SLOTS=by(decision)):
        answers = {
            (one.status_code, one.content, str(one.headers)) for one in (get(client, job.uuid), get(client, uuid4()))
        }
    assert len(answers) == 1
    assert answers.pop()[0] == 404


@pytest.mark.filterwarnings("ignore:coroutine")
def test_an_async_callable_opens_nothing(client: Client) -> None:
    job = waiting_job(tenant_queue())
    with override_settings(TENANT_SLOTS=by(asynchronous)):
        assert get(client, job.uuid).status_code == 404


@pytest.mark.usefixtures("open_to_acme")
@pytest.mark.parametrize("method", ["post", "put", "delete", "head"])
def test_it_is_read_only(client: Client, method: str) -> None:
    job = waiting_job(tenant_queue())
    assert getattr(client, method)(reverse("job_status", args=[job.uuid])).status_code == 405


@pytest.mark.usefixtures("open_to_acme")
def test_hostile_stats_are_data(client: Client) -> None:
    stats = {"<script>": "</script><img src=x onerror=alert(1)>"}
    response = get(client, waiting_job(tenant_queue(), stats=stats).uuid)
    assert response.headers["Content-Type"] == "application/json"
    assert json.loads(response.content)["stats"] == stats


@override_settings(TENANT_SLOTS=by("tests.nowhere.may_view"))
def test_a_path_that_cannot_be_imported_is_an_error_for_every_job_alike(client: Client) -> None:
    for uuid in (waiting_job(tenant_queue()).uuid, uuid4()):
        with pytest.raises(InvalidSetting, match="MAY_VIEW_JOB"):
            get(client, uuid)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("", None),
        ("tests.test_views.only_acme", None),
        (None, "dotted path"),
        (only_acme, "dotted path"),
        ("tests.nowhere.may_view", "cannot be imported"),
        ("tenant_slots.views.NOT_SHOWN", "not callable"),
        ("tests.test_views.asynchronous", "async"),
    ],
)
def test_the_system_check_knows_what_may_be_set(value: object, problem: str | None) -> None:
    with override_settings(TENANT_SLOTS={"MAY_VIEW_JOB": value}):
        hints = [str(message.hint) for message in checks.check_settings()]
    assert (problem is None and not hints) or (problem and problem in hints[0])


# --- health --------------------------------------------------------------------------------------------------------


def from_our_probe(request: HttpRequest) -> bool:
    return request.headers.get("X-Probe") == "ours"


OPEN = override_settings(TENANT_SLOTS={"MAY_VIEW_HEALTH": "tests.test_views.from_our_probe"})


def health(client: Client, probe: str = "ours", **query: str) -> Any:
    return client.get(reverse("health"), query, headers={"X-Probe": probe})


def test_health_is_closed_by_default(client: Client) -> None:
    assert health(client).status_code == 404


@OPEN
def test_health_is_for_those_whom_the_project_allows(client: Client) -> None:
    assert health(client, "theirs").status_code == 404
    assert health(client).status_code == 200


@OPEN
def test_a_queue_without_a_worker_is_503_and_names_no_tenant(client: Client) -> None:
    django_rq.get_connection("imports").flushall()
    waiting_job(tenant_queue("acme"))
    response = health(client)
    assert response.status_code == 503
    assert response.json() == {"ok": False, "findings": {"no worker": 1, "no sweep": 1}}
    assert "acme" not in response.content.decode()


@OPEN
def test_a_load_balancer_may_ask_for_the_status_alone(client: Client) -> None:
    ask = partial(client.head, reverse("health"), headers={"X-Probe": "ours"})
    assert (ask().status_code, ask().content) == (200, b"")
    django_rq.get_connection("imports").flushall()
    waiting_job(tenant_queue("acme"))
    assert ask().status_code == 503
    assert client.post(reverse("health")).status_code == 405


@OPEN
def test_some_checks_may_be_asked_for(client: Client) -> None:
    django_rq.get_connection("imports").flushall()
    waiting_job(tenant_queue("acme"))
    for names in ("counters,rows", " counters, rows "):
        assert health(client, check=names).json() == {"ok": True, "findings": {}}
    assert health(client, check="moon").status_code == 400
    assert health(client, check=["workers", "rows"]).status_code == 503, "as ?check=workers&check=rows"


@OPEN
def test_a_check_that_is_asked_for_often_is_made_once(client: Client) -> None:
    django_rq.get_connection("imports").flushall()
    waiting_job(tenant_queue("acme"))
    assert health(client, check=",".join(["workers"] * 50)).json()["findings"] == {"no worker": 1}


@OPEN
@pytest.mark.parametrize(
    "error", [OperationalError("connection refused"), ProgrammingError("permission denied for table")]
)
def test_a_database_that_cannot_be_asked_is_503(
    error: Exception, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*names: str) -> None:
        raise error

    monkeypatch.setattr(doctor, "findings", away)
    assert (health(client).status_code, health(client).json()["findings"]) == (503, {"database": 1})


@OPEN
@pytest.mark.parametrize("alias", ["default", "other"])
def test_it_answers_where_no_transaction_can_be_begun(
    alias: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with ``ATOMIC_REQUESTS`` of any database, where Django begins one before it calls a view."""

    def away(*args: Any) -> None:
        raise OperationalError("connection refused")

    monkeypatch.setitem(connections.settings, alias, {**connection.settings_dict, "ATOMIC_REQUESTS": True})
    monkeypatch.setattr(transaction.Atomic, "__enter__", away)
    monkeypatch.setattr(doctor, "findings", away)
    assert (health(client).status_code, health(client).json()["findings"]) == (503, {"database": 1})


@OPEN
@pytest.mark.parametrize("url", ["localhost:6379", "redis://localhost:port/0"])
def test_a_redis_whose_url_is_wrong_is_503(url: str, client: Client) -> None:
    wrong = {name: {"URL": url} for name in settings.RQ_QUEUES}
    with override_settings(RQ_QUEUES=wrong):
        waiting_job(tenant_queue("acme"))
        response = health(client)
    assert response.status_code == 503
    assert response.json()["findings"]["redis"] == len(wrong)


@pytest.mark.parametrize(
    ("value", "problem"), [("tests.test_views.from_our_probe", ""), ("tests.nowhere", "cannot be"), (1, "dotted")]
)
def test_the_system_check_knows_who_may_view_the_health(value: object, problem: str) -> None:
    with override_settings(TENANT_SLOTS={"MAY_VIEW_HEALTH": value}):
        hints = " ".join(str(message.hint) for message in checks.check_settings())
    assert problem in hints if problem else not hints


# --- where every view wants a login ----------------------------------------------------------------------------------


def everybody(request: HttpRequest, job: TenantJob | None = None) -> bool:
    return True


@pytest.fixture
def with_login_required() -> Iterator[None]:
    with override_settings(MIDDLEWARE=[*settings.MIDDLEWARE, "django.contrib.auth.middleware.LoginRequiredMiddleware"]):
        yield


def answers(client: Client) -> dict[str, int]:
    urls = {name: reverse(name) for name in ("health", "autoscaling", "metrics")}
    urls["job_status"] = reverse("job_status", args=[waiting_job(tenant_queue()).uuid])
    return {name: client.get(url).status_code for name, url in urls.items()}


@pytest.mark.usefixtures("with_login_required")
def test_what_machines_ask_is_the_callables_to_open_where_every_view_wants_a_login_too(client: Client) -> None:
    """A probe that was sent on to a page would take that for health. A job's status is for people, who sign in."""
    path = "tests.test_views.everybody"
    with override_settings(TENANT_SLOTS=dict.fromkeys(("MAY_VIEW_JOB", "MAY_VIEW_HEALTH", "MAY_VIEW_METRICS"), path)):
        opened = answers(client)
    assert opened == {"health": 503, "autoscaling": 200, "metrics": 200, "job_status": 302}


@pytest.mark.usefixtures("with_login_required")
def test_they_stay_closed_there_until_the_project_opens_them(client: Client) -> None:
    assert answers(client) == {"health": 404, "autoscaling": 404, "metrics": 404, "job_status": 302}
