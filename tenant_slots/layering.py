"""Methods that belong to a model but are written in a layer above it.

A model stands at the bottom: everything imports it. ``row.set_limit(5)`` needs what stands on top of it, so the model
only declares the method, and the module that implements it says so. ``TenantSlotsConfig.import_models`` imports those
modules, before any app's ``ready``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
Row = TypeVar("Row")

_implementations: dict[str, Callable[..., Any]] = {}

declared: set[str] = set()
"""Every method that waits for its implementation."""


def implemented_above(declaration: Callable[P, R]) -> Callable[P, R]:
    """A model's method that has a signature and a docstring here, and its body in a module above."""
    name = declaration.__qualname__
    declared.add(name)

    @functools.wraps(declaration)
    def method(*args: P.args, **kwargs: P.kwargs) -> R:
        result: R = implementation_of(name)(*args, **kwargs)
        return result

    method.alters_data = True  # type: ignore[attr-defined]  # no template calls it
    return method


def implements(
    declaration: Callable[Concatenate[Row, P], R],
) -> Callable[[Callable[Concatenate[Row, P], R]], Callable[Concatenate[Row, P], R]]:
    """The decorated function is the body of this method; its signature must be the same, as mypy sees it."""

    def register(function: Callable[Concatenate[Row, P], R]) -> Callable[Concatenate[Row, P], R]:
        _implementations[declaration.__qualname__] = function
        return function

    return register


def implementation_of(name: str) -> Callable[..., Any]:
    """The body of a declared method. Raises NotImplementedError while no imported module has it."""
    if name not in _implementations:
        raise NotImplementedError(f"{name} has no implementation; is tenant_slots in INSTALLED_APPS and Django set up?")
    return _implementations[name]


def unimplemented() -> set[str]:
    """Declared methods that would fail when they are called; empty once the models are loaded."""
    return declared - _implementations.keys()
