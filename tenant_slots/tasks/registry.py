"""Every decorated function that this process has imported, and the way from a dotted path to one of them."""

from __future__ import annotations

from typing import Any

from django.utils.module_loading import import_string

from tenant_slots.exceptions import UnknownJob
from tenant_slots.tasks.task import TenantTask

registered: dict[str, TenantTask[..., Any]] = {}
"""By dotted path."""


def resolve(path: str) -> TenantTask[..., Any]:
    """The decorated function at a dotted path; never anything else, whatever a row or an RQ payload says.

    Raises:
        UnknownJob: there is no such decorated function.
    """
    if path not in registered:
        try:
            _import(path)
        except ImportError as error:
            raise UnknownJob(task=path) from error
    if path not in registered:
        raise UnknownJob(task=path)
    return registered[path]


def _import(path: str) -> None:
    try:
        import_string(path)
    except ImportError:
        import_string(path.rpartition(".")[0])  # of a method, which is registered when its class is made
