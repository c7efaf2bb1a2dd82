"""Arguments, results and all else that is kept as JSON come back equal, the types and signs of numbers included."""

from __future__ import annotations

import json
import math
import random
import struct
from typing import Any

import pytest
from django.db import connection
from django.db.models import JSONField
from hypothesis import given
from hypothesis import strategies as st

from tenant_slots.exact_json import ExactEncoder
from tenant_slots.models import TenantJob
from tests import jobs
from tests.factories import fresh, tenant_queue, work

FLOATS = [
    1e16, 1e22, 1e23, -1e23, 1.5e300, 1.7976931348623157e308, 5e-324, -5e-324, 2.2250738585072014e-308, 1e-7, 0.1,
    0.0, -0.0, 1.0, -1.0, 123456789012345680.0, 9007199254740993.0,
]  # fmt: skip
NESTED = {"a -0.0 e+16": [1e16, {'\\"1e+16': "1e+16"}, [-0.0, "-0.0", -0.05, -0.01e-5]], "last": "\\"}


def same(left: Any, right: Any) -> bool:
    """Equal, of the same types, and zeros of the same sign."""
    return repr(_in_order(left)) == repr(_in_order(right))


def _in_order(value: Any) -> Any:
    """jsonb has its own order of keys."""
    if isinstance(value, dict):
        return {key: _in_order(value[key]) for key in sorted(value)}
    return [_in_order(one) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize("value", [*FLOATS, 10**16, 10**400, True, NESTED], ids=str)
def test_a_value_is_the_same_after_it_was_text(value: Any) -> None:
    assert same(json.loads(json.dumps(value, cls=ExactEncoder)), value)


# Hypothesis sees when the state of `random` changes meanwhile, also by a thread that a library keeps, as Sentry's.
@pytest.mark.filterwarnings("ignore:Do not use the .random. module:hypothesis.errors.HypothesisDeprecationWarning")
@given(st.recursive(st.floats(allow_nan=False, allow_infinity=False) | st.text() | st.integers(), st.lists))
def test_any_value_is(value: Any) -> None:
    assert same(json.loads(json.dumps(value, cls=ExactEncoder)), value)


@pytest.mark.django_db(transaction=True)
def test_arguments_and_results_come_back_equal_from_the_database() -> None:
    row = tenant_queue("acme", max_job=0)
    given = [*FLOATS, 10**16, 10**400, NESTED]
    many = jobs.echo.enqueue_many([(("acme", given), {"more": given})] * 150)  # by COPY, where there is one
    one = jobs.echo.enqueue("acme", given, more=given)
    for job in (many[0], many[149], one):
        assert same(fresh(job).args, ["acme", given])
        assert same(job.kwargs, {"more": given})
    TenantJob.objects.exclude(pk=one.pk).delete()
    row.set_limit(1)
    work()
    assert same(fresh(one).result, given)


@pytest.mark.django_db(transaction=True)
def test_random_floats_of_all_sizes_come_back_equal_from_the_database() -> None:
    generator = random.Random(7)
    drawn = [struct.unpack("<d", generator.randbytes(8))[0] for _ in range(2000)]
    floats = [number for number in drawn if math.isfinite(number)]
    tenant_queue("acme", max_job=0)
    for some in (floats[:500], floats[500:1000], floats[1000:1500], floats[1500:]):
        assert same(fresh(jobs.echo.enqueue("acme", some)).args[1], some)


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite keeps the text")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("number", [1e16, 1e23, -0.0])
def test_control_djangos_field_gives_back_another_number(number: float, monkeypatch: pytest.MonkeyPatch) -> None:
    field = TenantJob._meta.get_field("args")
    assert isinstance(field, JSONField)
    monkeypatch.setattr(field, "encoder", None)
    tenant_queue("acme", max_job=0)
    assert not same(fresh(jobs.echo.enqueue("acme", number)).args[1], number)
