"""What the project's callables note of a call's surroundings, and have a job find again where it runs.

``CAPTURE_CONTEXT`` and ``JOB_CONTEXT`` name them. Where they name none this costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import Any

from tenant_slots import logs
from tenant_slots.conf import app_settings
from tenant_slots.exact_json import size_of
from tenant_slots.exceptions import InvalidContext, InvalidSetting
from tenant_slots.models import TenantJob
from tenant_slots.named import callable_named
from tenant_slots.tasks.arguments import json_problem

PER_THREAD = "tenant_slots_per_thread"
"""A context manager's own mark: what it sets is the thread's, such as a database connection. See `of_thread`."""

AFTER_DELIVERY = "tenant_slots_after_delivery"
"""Another one: a callable, which is called after each delivery by RQ, also of a job that was not to run, or not now."""

IN_META = "tenant_slots_context"
"""Under which key of a plain RQ job's meta its context is."""


def capture_context() -> dict[str, Any]:
    """What the callables of ``CAPTURE_CONTEXT`` say of here and now, together.

    Raises:
        InvalidContext: one of them gave what a job's row cannot keep, or a key of another one.
        InvalidSetting: one of them cannot be imported, or called.
    """
    context: dict[str, Any] = {}
    for path in paths_in(app_settings.CAPTURE_CONTEXT):
        own = callable_named("CAPTURE_CONTEXT", path)()
        if problem := _problem(own, context):
            raise InvalidContext(path=path, problem=problem)
        context |= own
    _require_small(context)
    return context


def context_in(meta: Mapping[str, Any]) -> dict[str, Any]:
    """The context that a plain RQ job brings along. Raises InvalidContext when it is none."""
    context = meta.get(IN_META, {})
    if problem := _problem(context, {}):
        raise InvalidContext(path=f"meta[{IN_META!r}]", problem=problem)
    return dict(context)


@contextmanager
def entered(job: TenantJob) -> Iterator[None]:
    """The context managers of ``JOB_CONTEXT``, in their order, around what is done for a job."""
    with logs.called_for(job), _JobContext(job, paths_in(app_settings.JOB_CONTEXT)):
        yield


def of_thread(job: TenantJob) -> AbstractContextManager[Any] | None:
    """Those of them that hold for a thread, to be entered in another one too; None without any."""
    paths = paths_in(app_settings.JOB_CONTEXT)
    own = [path for path in paths if getattr(callable_named("JOB_CONTEXT", path), PER_THREAD, False)]
    return _JobContext(job, own) if own else None


@contextmanager
def delivered() -> Iterator[None]:
    """Around what RQ calls for a job."""
    try:
        yield
    finally:
        for path in paths_in(app_settings.JOB_CONTEXT):
            with suppress(Exception):  # of a wrong path the jobs that run tell, which fail
                getattr(callable_named("JOB_CONTEXT", path), AFTER_DELIVERY, lambda: None)()


def paths_in(setting: str | Iterable[str]) -> tuple[str, ...]:
    """One dotted path or several."""
    return ((setting,) if setting else ()) if isinstance(setting, str) else tuple(setting)


class _JobContext(AbstractContextManager[None]):
    """All of them or none: nothing runs that one of them has refused, and none of them swallows a job's error."""

    def __init__(self, job: TenantJob, paths: Iterable[str]) -> None:
        self._job, self._paths, self._stack = job, paths, ExitStack()

    def __enter__(self) -> None:
        try:
            for path in self._paths:
                self._stack.enter_context(_Unswallowed(_manager(path, self._job)))
        except BaseException as error:
            self._stack.__exit__(type(error), error, error.__traceback__)
            raise

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)


def _manager(path: str, job: TenantJob) -> AbstractContextManager[Any]:
    """Raises InvalidSetting unless what is named there gives one; one for ``async with`` is none."""
    found = callable_named("JOB_CONTEXT", path)(job)
    if not isinstance(found, AbstractContextManager):
        problem = f"it gave a {type(found).__name__}, which is no context manager"
        raise InvalidSetting(name="JOB_CONTEXT", value=path, problem=problem)
    return found


class _Unswallowed(AbstractContextManager[None]):
    """One of them, which hides no error from those around it: an `atomic` there would commit."""

    def __init__(self, manager: AbstractContextManager[Any]) -> None:
        self._manager, self._stack = manager, ExitStack()

    def __enter__(self) -> None:
        self._stack.enter_context(self._manager)

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)


def _problem(own: object, others: Mapping[str, Any]) -> str:
    if not isinstance(own, dict):
        return f"it is a {type(own).__name__}; give a dict"
    if taken := own.keys() & others.keys():
        return f"another one gives {sorted(taken)[0]!r} too; choose another key"
    return json_problem(own)


def _require_small(context: dict[str, Any]) -> None:
    limit = app_settings.MAX_ARGS_BYTES
    if context and (size := size_of(context)) > limit:
        problem = f'it takes {size} bytes; TENANT_SLOTS["MAX_ARGS_BYTES"] allows {limit}'
        raise InvalidContext(path=", ".join(paths_in(app_settings.CAPTURE_CONTEXT)), problem=problem)
