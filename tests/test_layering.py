"""A model's methods whose body is written in a layer above."""

from __future__ import annotations

import inspect

import pytest

from tenant_slots import layering
from tenant_slots.layering import implemented_above, implements
from tenant_slots.models import TenantJob, TenantJobQuerySet, TenantQueue


def test_every_declared_method_is_implemented_once_the_app_is_ready() -> None:
    assert {"TenantJob.cancel", "TenantQueue.set_limit"} <= layering.declared
    assert layering.unimplemented() == set()


def test_an_implementation_takes_what_its_declaration_says() -> None:
    for name in layering.declared:
        model = {model.__name__: model for model in (TenantJob, TenantJobQuerySet, TenantQueue)}[name.partition(".")[0]]
        declaration = inspect.signature(getattr(model, name.partition(".")[2]))
        implementation = inspect.signature(layering.implementation_of(name))
        said, taken = (list(one.parameters.values())[1:] for one in (declaration, implementation))
        assert said == taken, name


def test_a_method_that_nobody_implements_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layering, "declared", set())

    class Row:
        @implemented_above
        def grow(self, by: int) -> int:
            """How much."""
            raise NotImplementedError

    assert layering.unimplemented() == {Row.grow.__qualname__}
    with pytest.raises(NotImplementedError, match="grow"):
        Row().grow(1)

    @implements(Row.grow)
    def grow(row: Row, by: int) -> int:
        return by + 1

    assert Row().grow(1) == 2
    assert Row.grow.__doc__ == "How much."
    assert layering.unimplemented() == set()
