"""Of an error, viewers without the permission to see arguments learn its class and not a word more."""

from __future__ import annotations

import pytest
from django.test import Client

from tenant_slots.admin.errors import class_of
from tenant_slots.models import Kind, State, TenantJob
from tenant_slots.running.errors import described
from tests.admin.site import change_page, signed_in
from tests.factories import tenant_queue, waiting_job

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
    page = client.get(change_page(job_with(raised(ValueError(SECRET))))).content.decode()
    assert "Quux" not in page
    assert "ValueError" in page


def test_the_whole_error_is_shown_with_the_permission() -> None:
    client = signed_in("view_tenantjob", "view_job_arguments")
    assert SECRET in client.get(change_page(job_with(raised(ValueError(SECRET))))).content.decode()


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (raised(ValueError("a\nsecret: b\nhunter2")), "ValueError"),
        (raised(ValueError()), "ValueError"),
        (raised(KeyError("secret"), ValueError("Secret: 1")), "KeyError"),
        (raised(ExceptionGroup("secret", [ValueError("secret")])), ""),
        (raised(ValueError("x")) + "\nattempt 2: its worker died", "ValueError"),
        ("the job asked to run again", ""),
        ("Hunter2", ""),
        ("", ""),
    ],
)
def test_the_class_is_read_from_the_traceback(error: str, shown: str) -> None:
    assert class_of(TenantJob(error=error)) == shown


def test_the_error_of_a_reservation_has_no_traceback() -> None:
    assert class_of(TenantJob(error="shop.FeedBroken: secret", kind=Kind.RESERVATION)) == "shop.FeedBroken"
    assert class_of(TenantJob(error="secret of 4111", kind=Kind.RESERVATION)) == ""


def test_an_error_without_a_class_is_said_to_be_hidden(viewer: Client) -> None:
    assert "********" in viewer.get(change_page(job_with("hunter2"))).content.decode()
