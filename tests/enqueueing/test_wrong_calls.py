"""What is no call is refused with its place among the calls, and nothing is stored."""

from __future__ import annotations

from typing import Any

import pytest

from tenant_slots.exceptions import InvalidCall
from tenant_slots.models import TenantJob
from tests import jobs

pytestmark = pytest.mark.django_db

GOOD = ((1, 2), {"tenant": "acme"})


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        (("acme",), "tuple"),
        ({"tenant": "acme"}, "dict"),
        (("acme", "other", "third"), "tuple"),
        ("ab", "str"),
        (7, "int"),
        (("acme", {}), "tuple"),
        (((1, 2), [("tenant", "acme")]), "tuple"),
        (((1, 2), None), "tuple"),
        ((None, {}), "tuple"),
        (((1, 2), {3: "acme"}), "tuple"),
    ],
    ids=str,
)
def test_a_call_of_another_shape_is_refused_by_its_place(wrong: Any, kind: str) -> None:
    with pytest.raises(InvalidCall, match=f"call 1 of tests.jobs.add, a {kind}, .*pair") as refused:
        jobs.add.enqueue_many([GOOD, wrong])
    assert isinstance(refused.value, TypeError)
    assert "third" not in str(refused.value), "arguments may be secrets"
    assert not TenantJob.objects.exists()


def test_a_call_may_be_any_two_that_are_positional_and_keyword_arguments() -> None:
    calls: list[Any] = [GOOD, [[1, 2], {"tenant": "acme"}], (iter((1, 2)), {"tenant": "acme"})]
    calls.append(jobs.add.call(1, 2, tenant="acme"))
    assert [job.args for job in jobs.add.enqueue_many(iter(calls))] == [[1, 2]] * 4


def test_an_error_that_a_generator_of_calls_raises_is_its_own() -> None:
    def calls() -> Any:
        yield GOOD
        raise ValueError("the file ends here")

    with pytest.raises(ValueError, match="the file ends here"):
        jobs.add.enqueue_many(calls())
    assert not TenantJob.objects.exists()
