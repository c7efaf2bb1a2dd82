"""The page of a tenant queue says what decided its limit, and why."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from tenant_slots.admin import audit, decided
from tenant_slots.admin.snapshots import forget_shared
from tenant_slots.admin.words import moment
from tenant_slots.models import LimitSource, TenantQueue
from tests.admin.site import HOSTILE, LIVE, change_page
from tests.factories import fresh, tenant_queue

pytestmark = pytest.mark.django_db


def told_of(row: TenantQueue) -> list[str]:
    return decided.sentences(row, audit.kept_of(row))


def set_at(row: TenantQueue) -> str:
    return moment(row.kept_changes.latest("pk").at)


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        (5, "DEFAULT_MAX_JOB"),
        ({"imports": 5}, "DEFAULT_MAX_JOB"),
        ("shop.plans.limit_for", "DEFAULT_MAX_JOB, shop.plans.limit_for"),
    ],
)
def test_a_default_names_the_setting_and_the_callable_that_knows_the_plans(
    settings: Any, setting: Any, told: str
) -> None:
    settings.TENANT_SLOTS = {"DEFAULT_MAX_JOB": setting}
    row = tenant_queue(max_job=5)
    assert told_of(row) == [f"5, the default when it was given: {told}."]


def test_calls_without_a_tenant_name_no_setting() -> None:
    (told,) = told_of(tenant_queue("", max_job=9))
    assert "DEFAULT_MAX_JOB" not in told


def test_a_limit_that_was_set_has_who_when_and_why() -> None:
    row = tenant_queue()
    row.set_limit(3, by="anna", reason="trial")
    row.set_limit(7, by="billing", reason="plan: pro")
    time = set_at(row)
    row.set_share(4, by="anna", reason="of something else")
    assert told_of(row) == [f"7, set by billing at {time}. Reason: plan: pro"]


def test_an_override_has_its_end_and_its_reason_and_what_comes_after_it() -> None:
    row = tenant_queue()
    row.set_limit(3, by="billing", reason="plan: pro")
    set_before = set_at(row)
    until = timezone.now() + timedelta(days=2)
    row.set_override(9, until, by="anna", reason="import day")
    assert told_of(row) == [
        f"9 until {moment(until)}, an override by anna. Reason: import day",
        f"After that: 3, set by billing at {set_before}. Reason: plan: pro",
    ]
    row.end_override(by="sweep")
    assert told_of(row) == [f"3, set by billing at {set_before}. Reason: plan: pro"]


def test_a_limit_whose_change_is_not_kept_any_more_has_who_alone() -> None:
    row = tenant_queue(max_job=4, limit_source=LimitSource.SET, limit_set_by="billing")
    assert told_of(row) == ["4, set by billing."]
    TenantQueue.objects.update(limit_set_by="", limit_source=LimitSource.UNRECORDED)
    assert told_of(fresh(row)) == ["4. Who set it is not recorded."]


def test_code_that_gives_no_name_is_called_code() -> None:
    row = tenant_queue()
    row.set_limit(2)
    assert told_of(row) == [f"2, set by code at {set_at(row)}."]


def shown_in_list(client: Client, row: TenantQueue) -> str:
    answer = client.get(LIVE, {"rows": row.pk}).json()
    forget_shared()
    return str(answer["cells"][f"{row.pk}.origin"]["text"])


def test_the_list_says_who_set_a_limit_and_why(viewer: Client) -> None:
    row = tenant_queue()
    assert shown_in_list(viewer, row) == "default"
    row.set_limit(3, by="anna", reason="trial")
    row.set_limit(7, by="billing", reason="plan: pro")
    row.set_share(4, by="billing", reason="of something else")
    assert shown_in_list(viewer, row) == "set by billing: plan: pro"
    row.set_override(9, timezone.now() + timedelta(days=2), by="anna", reason="import day " * 20)
    assert shown_in_list(viewer, row).startswith("override until")
    assert "(anna): import day import day" in shown_in_list(viewer, row)
    assert len(shown_in_list(viewer, row)) < 150, "not all of a long reason"
    row.end_override(by="sweep")
    assert shown_in_list(viewer, row) == "set by billing: plan: pro"
    row.set_limit(8, by="billing")
    assert shown_in_list(viewer, row) == "set by billing", "the reason of another limit is none of this one"
    row.reset_to_default(reason="the trial is over")
    assert shown_in_list(viewer, row) == "default"


def test_the_page_shows_it_as_text(viewer: Client) -> None:
    row = tenant_queue()
    row.set_limit(3, by="billing", reason=HOSTILE)
    page = viewer.get(change_page(row)).content.decode()
    assert f"3, set by billing at {set_at(row)}. Reason: &lt;script&gt;" in page
    assert HOSTILE not in page
