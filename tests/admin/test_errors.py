"""Of an error, viewers without the permission to see arguments learn its class and not a word more."""

from __future__ import annotations

import pytest
from django.test import Client
from rq import Retry

from tenant_slots import tenant_job
from tenant_slots.admin.errors import class_of
from tenant_slots.models import Kind, State, TenantJob
from tenant_slots.running.errors import described
from tests.admin.site import change_page, signed_in
from tests.factories import fresh, tenant_queue, waiting_job, work

pytestmark = pytest.mark.django_db

SECRET = "card of Jo Quux"
"""In letters that no hexadecimal id has."""


def raised(error: BaseException, cause: BaseException | None = None) -> str:
    try:
        raise error from cause
    except BaseException as caught:
        return described(caught)[0]


def job_with(error: str, **values: object) -> TenantJob:
    return waiting_job(tenant_queue(), state=State.FAILED, error=error, **values)


@pytest.mark.parametrize("codenames", [(), ("change_tenantjob",), ("stop_tenantjob", "export_tenantjob")])
def test_no_word_of_an_error_is_shown_without_the_permission(codenames: tuple[str, ...]) -> None:
    client = signed_in("view_tenantjob", *codenames)
    page = client.get(change_page(job_with(raised(ValueError(SECRET)), error_class="ValueError"))).content.decode()
    assert "Quux" not in page
    assert "ValueError" in page


@tenant_job("imports", tenant="tenant", retry=Retry(max=1, interval=60))
def asks_partner(tenant: str) -> None:
    raise ValueError(f"the partner's program has failed:\n{STACK_OF_A_PARTNER}{SECRET_WORD}")


STACK_OF_A_PARTNER = 'Traceback (most recent call last):\n  File "partner.py", line 1, in <module>\n'

SECRET_WORD = "s3cret"


@pytest.mark.django_db(transaction=True)
def test_nor_is_one_that_its_text_has_behind_the_traceback_of_another_program() -> None:
    """Of a job that is to run again, its row has no class of its own."""
    job = asks_partner.enqueue("acme")
    work()
    assert (fresh(job).state, job.error_class, SECRET_WORD in job.error) == (State.SCHEDULED, None, True)
    page = signed_in("view_tenantjob").get(change_page(job)).content.decode()
    assert SECRET_WORD not in page
    assert "ValueError" in page


def test_the_whole_error_is_shown_with_the_permission() -> None:
    client = signed_in("view_tenantjob", "view_job_arguments")
    assert SECRET in client.get(change_page(job_with(raised(ValueError(SECRET))))).content.decode()


@pytest.mark.parametrize(
    "error", [raised(ValueError("secret")), raised(KeyError("secret"), ValueError("Secret: 1")), "Hunter2: secret", ""]
)
@pytest.mark.parametrize("kind", Kind.values)
def test_no_class_is_read_from_the_text(error: str, kind: str) -> None:
    assert class_of(TenantJob(error=error, kind=kind)) == ""


def test_an_error_without_a_class_is_said_to_be_hidden(viewer: Client) -> None:
    assert "********" in viewer.get(change_page(job_with("hunter2"))).content.decode()
