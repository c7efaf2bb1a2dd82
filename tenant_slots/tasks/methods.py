"""Methods of models as tasks: a row keeps which object, the worker fetches it and calls the method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.apps import apps
from django.core.exceptions import ValidationError
from django.db import router
from django.db.models import Model

from tenant_slots.exceptions import ImproperJob, InvalidObject, ObjectGone, UnknownJob
from tenant_slots.models import TenantJob
from tenant_slots.tasks.arguments import json_problem
from tenant_slots.tasks.task import TenantTask

LONGEST_PK: int = TenantJob._meta.get_field("object_pk").max_length or 0

models_of: dict[str, type[Model]] = {}
"""The model, perhaps an abstract one, on which each decorated method was written, by the method's dotted path."""


def object_fields(task: TenantTask[..., Any], args: Sequence[Any]) -> dict[str, str]:
    """What a row keeps of the object that a call of a method is for; nothing for a function.

    Raises:
        ImproperJob: the function was not decorated in the body of a model.
        InvalidObject: the object is not saved, or its key cannot be kept.
        TypeError: there is no object, or one of another class.
    """
    if not task.is_method:
        return {}
    owner = _model_that_has(task)
    if not args or not isinstance(args[0], owner):
        raise TypeError(f"{task.path} needs a {owner.__name__} as its first argument")
    instance = args[0]
    model = instance._meta.label_lower
    if instance.pk is None or instance._state.adding:
        raise InvalidObject(model=model, task=task.path, problem="it is not saved; save it first")
    if isinstance(instance.pk, tuple) and None in instance.pk:
        raise InvalidObject(model=model, task=task.path, problem="its key is not complete, a part of it is None")
    key = instance._meta.pk.value_to_string(instance)
    if problem := _key_problem(key):
        raise InvalidObject(model=model, task=task.path, problem=problem)
    return {"object_model": model, "object_pk": key}


def object_of(task: TenantTask[..., Any], job: TenantJob) -> tuple[()] | tuple[Model]:
    """The object of a stored call as the function's first argument; nothing for a function.

    Raises:
        ObjectGone: there is no such object any more, or the model has another kind of key by now.
        UnknownJob: the row names a model that does not have this method.
    """
    if not task.is_method:
        return ()
    model = _model_of(task, job)
    gone = ObjectGone(model=job.object_model, pk=job.object_pk, task=job.task)
    try:
        # Not from a replica, which may not have seen yet what was stored together with the job.
        at_its_key = model._base_manager.using(router.db_for_write(model)).filter(pk=_key_of(model, job))
    except (ValidationError, ValueError, TypeError) as error:
        raise gone from error
    found = at_its_key.first()
    if found is None:
        raise gone
    return (found,)


def _model_that_has(task: TenantTask[..., Any]) -> type[Model]:
    if task.path not in models_of:
        raise ImproperJob(
            name=task.function.__qualname__, problem="it has a class but was not decorated in the body of a model"
        )
    return models_of[task.path]


def _model_of(task: TenantTask[..., Any], job: TenantJob) -> type[Model]:
    try:
        model = apps.get_model(job.object_model)
    except (LookupError, ValueError) as error:
        raise UnknownJob(task=f"{job.task} of model {job.object_model}") from error
    if not issubclass(model, _model_that_has(task)):
        raise UnknownJob(task=f"{job.task} of model {job.object_model}")
    return model


def _key_of(model: type[Model], job: TenantJob) -> Any:
    return model._meta.pk.to_python(job.object_pk)


def _key_problem(key: str) -> str:
    return f"its key takes more than {LONGEST_PK} characters" if len(key) > LONGEST_PK else json_problem(key)
