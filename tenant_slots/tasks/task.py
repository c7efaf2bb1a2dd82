"""A decorated function with what is known about its jobs, and one call of it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Generic, ParamSpec, TypeVar
from uuid import UUID

from tenant_slots.tasks.duplicates import END
from tenant_slots.tasks.on_busy import WAIT, OnBusy
from tenant_slots.tasks.throttle import Throttle
from tenant_slots.validation import name_text

P = ParamSpec("P")
R = TypeVar("R")

Arguments = tuple[Iterable[Any], Mapping[str, Any]]
"""The positional and the keyword arguments of one call."""


class Call(Generic[P]):
    """The same where type checkers are to compare them with the function's parameters. As a tuple it would be an
    `Arguments` to them, of whatever function it is.
    """

    def __init__(self, /, *args: P.args, **kwargs: P.kwargs) -> None:
        self._args, self._kwargs = args, kwargs

    def __iter__(self) -> Iterator[Any]:
        return iter((self._args, self._kwargs))


@dataclass(frozen=True)
class TenantTask(Generic[P, R]):
    """What ``@tenant_job`` was given, and what ``using()`` has changed for some calls."""

    function: Callable[P, R]
    queue: str
    tenant: str | Callable[..., object]
    rq_options: Mapping[str, Any] = field(default_factory=dict)
    on_busy: OnBusy = WAIT
    throttle: Sequence[Throttle] = ()
    unique_for: timedelta | None = None
    unique_key: Callable[..., object] | None = None
    unique_until: str = END
    debounce: timedelta | None = None
    max_wait: timedelta | None = None
    key: str | Callable[..., object] | None = None
    explicit_tenant: str | int | UUID | None = None
    explicit_key: str | None = None
    explicit_queue: bool = False
    """The caller chose the queue; no throttle moves the job from there."""
    priority: int = 0
    run_after: datetime | None = None
    expires: timedelta | None = None
    retry_for: type[BaseException] | tuple[type[BaseException], ...] = BaseException
    on_success: Callable[[Any, Any], object] | None = None
    on_failure: Callable[[Any, BaseException], object] | None = None
    after: tuple[int, ...] = ()
    """The primary keys of jobs that are to end first."""
    after_any: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "queue", name_text(self.queue))

    @functools.cached_property
    def path(self) -> str:
        return f"{self.function.__module__}.{self.function.__qualname__}"

    @functools.cached_property
    def is_method(self) -> bool:
        """Whether the function's first argument is an object of a model, which the row keeps apart."""
        return "." in self.function.__qualname__

    @functools.cached_property
    def signature(self) -> inspect.Signature:
        return inspect.signature(self.function)

    @functools.cached_property
    def stored_options(self) -> dict[str, Any]:
        """The options as a row keeps them, so that whoever pushes the job need not import its code."""
        options = dict(self.rq_options)
        if retry := options.get("retry"):
            options["retry"] = {"max": retry.max, "intervals": retry.intervals}
        return options

    def called_for(self, job: Any) -> Callable[..., Any]:
        """What is called for a stored job, with its arguments."""
        return self.function

    def result_of(self, call: Callable[[], Any]) -> Any:
        """What a call gives that is made here, with arguments that no variable has: tools for errors show those."""
        return call()

    def called_with(self, args: Iterable[Any], kwargs: Mapping[str, Any]) -> TaskCall:
        """Raises TypeError when the arguments do not fit the function."""
        return TaskCall(self, tuple(args), dict(kwargs))


class TaskCall:
    """One call of a task. Its arguments are bound to the function's signature once, when it is made."""

    def __init__(self, task: TenantTask[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.task, self.args, self.kwargs = task, args, kwargs
        self._bound = task.signature.bind(*args, **kwargs)
        self._bound.apply_defaults()

    @property
    def arguments(self) -> Mapping[str, Any]:
        """Every argument by name, however it was passed, with the defaults of the others."""
        return self._bound.arguments

    @property
    def stored_args(self) -> list[Any]:
        """The positional arguments that a row keeps: those of a method without its object."""
        return list(self.args[1:] if self.task.is_method else self.args)

    @property
    def stored_arguments(self) -> dict[str, Any]:
        """`arguments` without a method's object."""
        return dict(list(self.arguments.items())[1 if self.task.is_method else 0 :])

    def answer_of(self, source: str | Callable[..., object]) -> object:
        """The value of the argument of that name, or what a callable says when it is given the call's arguments."""
        return source(*self.args, **self.kwargs) if callable(source) else self.arguments[source]
