"""``@tenant_job`` on a method of a model: a row keeps which object, the worker fetches it and calls the method."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, NoReturn, ParamSpec, TypeVar

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.apps import apps
from django.db import router
from django.db.models import Model

from tenant_slots.arguments import json_problem
from tenant_slots.exceptions import ImproperJob, InvalidObject, MethodNotPicklable, ObjectGone, UnknownJob
from tenant_slots.models import TenantJob

if TYPE_CHECKING:
    from tenant_slots.decorators import Call, TenantTask

P = ParamSpec("P")
R = TypeVar("R")

LONGEST_PK: int = TenantJob._meta.get_field("object_pk").max_length or 0

WAYS_TO_ENQUEUE = ("enqueue", "delay", "enqueue_many", "using", "aenqueue", "aenqueue_many")

owners: dict[str, type[Model]] = {}
"""The model, perhaps an abstract one, on which each decorated method was written, by the method's dotted path."""


class TenantJobMethod(Generic[P, R]):
    """The attribute of the model's class. Called, or enqueued, through the class it takes the object first."""

    def __init__(self, task: TenantTask[P, R]) -> None:
        _look_like(task.function, self)
        self.tenant_task = task
        for name in WAYS_TO_ENQUEUE:
            setattr(self, name, getattr(task, name))

    def contribute_to_class(self, model: type[Model], name: str) -> None:
        """Called by Django while it makes the class of a model."""
        owners[self.tenant_task.path] = model
        setattr(model, name, self)

    def __set_name__(self, owner: type, name: str) -> NoReturn:
        """Called by Python while it makes any other class."""
        raise ImproperJob(
            name=self.tenant_task.function.__qualname__,
            problem=f"{owner.__name__} is not a Django model, so a worker could not fetch the object; "
            "decorate a function of a module, or make the class an abstract model",
        )

    def __get__(self, instance: Model | None, owner: type | None = None) -> Any:
        return self if instance is None else BoundTenantJob(self.tenant_task, instance)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        from tenant_slots import runner

        result: R = runner.call(self.tenant_task, args, kwargs)
        return result

    def __reduce__(self) -> NoReturn:
        raise MethodNotPicklable(task=self.tenant_task.path)


class BoundTenantJob(Generic[P, R]):
    """A decorated method of one object. Called it runs here and now; the rest is as of `TenantTask`, without `self`."""

    def __init__(self, task: TenantTask[..., R], instance: Any) -> None:
        _look_like(task.function, self)
        self.tenant_task = task
        self.__self__ = instance

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.tenant_task.function(self.__self__, *args, **kwargs)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> TenantJob:
        """As `TenantTask.enqueue`, for this object.

        Raises:
            InvalidObject: the object is not saved, or its key cannot be kept.
        """
        return self.tenant_task.enqueue(self.__self__, *args, **kwargs)

    delay = enqueue

    def enqueue_many(self, calls: Iterable[Call]) -> list[TenantJob]:
        return self.tenant_task.enqueue_many([((self.__self__, *args), kwargs) for args, kwargs in calls])

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> TenantJob:
        return await self.tenant_task.aenqueue(self.__self__, *args, **kwargs)

    async def aenqueue_many(self, calls: Iterable[Call]) -> list[TenantJob]:
        return await self.tenant_task.aenqueue_many([((self.__self__, *args), kwargs) for args, kwargs in calls])

    def using(self, **overrides: Any) -> BoundTenantJob[P, R]:
        return BoundTenantJob(self.tenant_task.using(**overrides), self.__self__)

    def __reduce__(self) -> NoReturn:
        raise MethodNotPicklable(task=self.tenant_task.path)


def object_fields(task: TenantTask[..., Any], args: Sequence[Any]) -> dict[str, str]:
    """What a row keeps of the object that a call of a method is for; nothing for a function.

    Raises:
        ImproperJob: the function was not decorated in the body of a model.
        InvalidObject: the object is not saved, or its key cannot be kept.
        TypeError: there is no object, or one of another class.
    """
    if not task.is_method:
        return {}
    owner = _owner(task)
    if not args or not isinstance(args[0], owner):
        raise TypeError(f"{task.path} needs a {owner.__name__} as its first argument")
    instance = args[0]
    model = instance._meta.label_lower
    if instance.pk is None or instance._state.adding:
        raise InvalidObject(model=model, task=task.path, problem="it is not saved; save it first")
    key = instance._meta.pk.value_to_string(instance)
    if problem := _key_problem(key):
        raise InvalidObject(model=model, task=task.path, problem=problem)
    return {"object_model": model, "object_pk": key}


def object_of(task: TenantTask[..., Any], job: TenantJob) -> tuple[()] | tuple[Model]:
    """The object of a stored call as the function's first argument; nothing for a function.

    Raises:
        ObjectGone: there is no such object any more.
        UnknownJob: the row names a model that does not have this method.
    """
    if not task.is_method:
        return ()
    model = _model_of(task, job)
    # Not from a replica, which may not have seen yet what was stored together with the job.
    found = model._base_manager.using(router.db_for_write(model)).filter(pk=_key_of(model, job)).first()
    if found is None:
        raise ObjectGone(model=job.object_model, pk=job.object_pk, task=job.task)
    return (found,)


def _owner(task: TenantTask[..., Any]) -> type[Model]:
    if task.path not in owners:
        raise ImproperJob(
            name=task.function.__qualname__, problem="it has a class but was not decorated in the body of a model"
        )
    return owners[task.path]


def _model_of(task: TenantTask[..., Any], job: TenantJob) -> type[Model]:
    try:
        model = apps.get_model(job.object_model)
    except (LookupError, ValueError) as error:
        raise UnknownJob(task=f"{job.task} of model {job.object_model}") from error
    if not issubclass(model, _owner(task)):
        raise UnknownJob(task=f"{job.task} of model {job.object_model}")
    return model


def _key_of(model: type[Model], job: TenantJob) -> Any:
    return model._meta.pk.to_python(job.object_pk)


def _key_problem(key: str) -> str:
    return f"its key takes more than {LONGEST_PK} characters" if len(key) > LONGEST_PK else json_problem(key)


def _look_like(function: Any, wrapper: Any) -> None:
    functools.update_wrapper(wrapper, function)
    if iscoroutinefunction(function):
        markcoroutinefunction(wrapper)
