"""A model's methods whose body is written in a layer above, and the layers as the code map shows them."""

from __future__ import annotations

import inspect
import re
import tomllib
from pathlib import Path

import pytest

from tenant_slots import layering
from tenant_slots.layering import implemented_above, implements
from tenant_slots.models import TenantJob, TenantJobQuerySet, TenantQueue

ROOT = Path(__file__).parent.parent
CODE_MAP = (ROOT / "docs" / "explanation" / "code-map.md").read_text()


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


def layers() -> list[set[str]]:
    """From above, as import-linter enforces them."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layered,) = (contract for contract in contracts if contract["type"] == "layers")
    return [set(layer.split(" | ")) for layer in layered["layers"]]


def drawn(page: str) -> list[set[str]]:
    """The names in each line of the page's diagram. What is said of them is apart, or in a line of its own."""
    diagram = page.partition("```\n")[2].partition("```")[0]
    lines = [line for line in diagram.splitlines() if not line.startswith(" ")]
    return [set(re.split(" {3,}", line)[0].split()) for line in lines]


def test_the_code_map_draws_every_layer() -> None:
    assert drawn(CODE_MAP) == layers()


def test_control_a_module_that_is_not_drawn_is_missed() -> None:
    without = CODE_MAP.replace("memory_file  parting  ", "memory_file  ")
    assert [set(), {"parting"}] == sorted(
        {frozenset(a - b) for a, b in zip(layers(), drawn(without), strict=True)}, key=len
    )
