"""Whose a call of a Task is: the first that says so."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.utils.module_loading import import_string

from tenant_slots.exceptions import TaskWithoutTenant
from tenant_slots.scope import tenant_in_scope

Source = str | Callable[..., object]

SEVERAL = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
"""Parameters that collect arguments, and are none themselves."""


@dataclass(frozen=True)
class TenantOfCall:
    """What a `TenantTask` has as its tenant: called with the arguments of a call, it gives the call's tenant.

    Args:
        task: the path of the Task.
        backend: the alias of its backend.
        signature: of what the arguments are for.
        sources: names of arguments and callables, of which the first that gives something decides; then comes the
            scope of the call. Of another function's argument nothing is asked.
    """

    task: str
    backend: str
    signature: inspect.Signature
    sources: tuple[Source, ...]

    def __call__(self, /, *args: Any, **kwargs: Any) -> object:
        """Raises TaskWithoutTenant."""
        for source in self.sources:
            if not _is_nobody(tenant := self._answer(source, args, kwargs)):
                return tenant
        if _is_nobody(tenant := tenant_in_scope()):
            raise TaskWithoutTenant(task=self.task, backend=self.backend)
        return tenant

    def _answer(self, source: Source, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        if callable(source):
            return source(*args, **kwargs)
        parameter = self.signature.parameters.get(source)
        if parameter is None or parameter.kind in SEVERAL:
            return kwargs.get(source)  # among the **kwargs of the function
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.arguments[source]


def source_in(option: Any) -> Source | None:
    """``OPTIONS["TENANT"]``, which may give a callable by its path too. Raises ImportError."""
    if isinstance(option, str) and "." in option:
        found: Source = import_string(option)
        return found
    source: Source | None = option
    return source


def _is_nobody(tenant: object) -> bool:
    return tenant is None or tenant == ""
