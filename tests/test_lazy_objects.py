"""Lazy objects, as of Django: they claim the type of what they stand for, and no driver of a database takes them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from django.utils.functional import SimpleLazyObject

from tenant_slots import hold_slot
from tenant_slots.exceptions import InvalidLimit, InvalidOption, InvalidRate
from tenant_slots.models import TenantJob
from tenant_slots.stats import usage
from tests import jobs
from tests.factories import tenant_queue

pytestmark = pytest.mark.django_db(transaction=True)


def lazy(value: object) -> Any:
    return SimpleLazyObject(lambda: value)


def test_a_name_may_be_one() -> None:
    job = jobs.add.using(tenant=lazy("acme"), key=lazy("user 7"), queue=lazy("imports")).enqueue(1, 2)
    assert (job.tenant_queue.tenant, job.key, job.tenant_queue.queue) == ("acme", "user 7", "imports")
    assert jobs.add.using(tenant=lazy(7)).enqueue(1, 2).tenant_queue.tenant == "7"
    assert [row.tenant for row in usage(tenant=lazy("acme"), queue=lazy("imports"))] == ["acme"]
    with hold_slot(lazy("umbrella"), lazy("imports"), key=lazy("user 8"), timeout=5):
        assert TenantJob.objects.get(tenant_queue__tenant="umbrella").key == "user 8"


@pytest.mark.parametrize(
    "option",
    [
        {"priority": lazy(5)},
        {"run_after": lazy(timezone.now() + timedelta(hours=1))},
        {"expires": lazy(timedelta(hours=1))},
        {"timeout": lazy(5)},
        {"meta": lazy({})},
    ],
)
def test_any_other_option_is_refused_as_of_another_type(option: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption):
        jobs.add.using(tenant="acme", **option).enqueue(1, 2)


def test_so_is_a_limit_and_a_rate() -> None:
    row = tenant_queue()
    with pytest.raises(InvalidLimit):
        row.set_limit(lazy(5))
    with pytest.raises(InvalidRate):
        row.set_rate(5, per=lazy(timedelta(minutes=1)))
