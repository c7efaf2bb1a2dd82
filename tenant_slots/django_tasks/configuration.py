"""The system checks of a backend's entry in ``TASKS``."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping
from typing import Any

from django.core.checks import CheckMessage, Error

from tenant_slots.conf import rq_queues
from tenant_slots.django_tasks.api import BaseTaskBackend
from tenant_slots.django_tasks.tenant import source_in
from tenant_slots.validation import shown

OPTIONS = ("TENANT",)


def check(backend: BaseTaskBackend) -> Iterator[CheckMessage]:
    """E016, E017: what Django asks a backend for."""
    yield from _check_queues(backend)
    yield from _check_options(backend)


def improper_queues(params: Mapping[str, Any]) -> list[Any]:
    """``QUEUES`` of a backend, if Django cannot tell one from another there: of a text it would take the letters."""
    given = params.get("QUEUES", [])
    is_several = isinstance(given, Collection) and not isinstance(given, str | bytes)
    return [] if is_several and all(isinstance(queue, Hashable) for queue in given) else [given]


def _check_queues(backend: BaseTaskBackend) -> Iterator[CheckMessage]:
    for given in getattr(backend, "improper_queues", ()):
        text = f'TASKS[{backend.alias!r}]["QUEUES"] is {shown(given)}.'
        yield Error(text, hint='Give a list, such as ["imports"].', id="tenant_slots.E016")
    known = rq_queues()
    hint = f"Add it to RQ_QUEUES, or use some of: {', '.join(sorted(map(str, known))) or 'none so far'}."
    for queue in sorted(backend.queues - known.keys(), key=str):
        text = f'TASKS[{backend.alias!r}]["QUEUES"] has queue {queue!r}, which RQ_QUEUES does not have.'
        yield Error(text, hint=hint, id="tenant_slots.E016")


def _check_options(backend: BaseTaskBackend) -> Iterator[CheckMessage]:
    options: object = backend.options
    if not isinstance(options, Mapping):
        text = f'TASKS[{backend.alias!r}]["OPTIONS"] is {options!r}.'
        yield Error(text, hint='Give a dict, such as {"TENANT": "tenant_id"}.', id="tenant_slots.E017")
        return
    for name, value in options.items():
        problem = _problem(value) if name in OPTIONS else f"The options are: {', '.join(OPTIONS)}."
        if problem:
            text = f'TASKS[{backend.alias!r}]["OPTIONS"][{name!r}] is {value!r}.'
            yield Error(text, hint=problem, id="tenant_slots.E017")


def _problem(value: Any) -> str:
    try:
        source = source_in(value)
    except Exception as error:  # whatever the project's module raises
        return f"It cannot be imported: {error}."
    is_name = isinstance(source, str) and source.isidentifier()
    return "" if is_name or callable(source) else "Give the name of an argument, or a callable, or the path of one."
