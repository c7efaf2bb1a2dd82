"""The backend for Django's own Tasks: plain ``@task`` functions on tenants' slots.

Name it in ``TASKS``, on Django 6.0 and later, or with the backport on Django 5.2. What it is made of is in
``django_tasks/``.
"""

from __future__ import annotations

from typing import Any

from django.core.checks import CheckMessage

from tenant_slots.conf import app_settings
from tenant_slots.django_tasks import configuration, ours, results
from tenant_slots.django_tasks.api import AnyResult, AnyTask, BaseTaskBackend, InvalidTask
from tenant_slots.django_tasks.calls import as_json, called_task
from tenant_slots.django_tasks.task import TenantSlotsTask
from tenant_slots.django_tasks.validation import problem_of, problem_of_place, problem_of_values
from tenant_slots.enqueueing import enqueue


class TenantSlotsBackend(BaseTaskBackend):
    """A call of a Task becomes a `TenantJob`, whose id is the result's.

    ``QUEUES`` are queues of RQ_QUEUES. ``OPTIONS["TENANT"]`` is an argument's name, or a callable that is given the
    call's arguments, or the dotted path of one.
    """

    task_class = TenantSlotsTask
    gives_slots = True
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        self.improper_queues = configuration.improper_queues(params)
        super().__init__(alias, {**params, "QUEUES": []} if self.improper_queues else params)
        self.options = self.options or {}  # None is none, as for Django's own backends, which never look at them
        ours.connect()

    def validate_task(self, task: AnyTask) -> None:
        """Raises InvalidTask, or InvalidTenant for what `using` was given."""
        if problem := problem_of_values(task):
            raise InvalidTask(problem)
        super().validate_task(task)
        if problem := problem_of(task):
            raise InvalidTask(problem)

    def enqueue(self, task: AnyTask, args: Any, kwargs: Any) -> Any:
        """Store a job, in the caller's transaction if there is one; it is admitted, and told of, when that commits.

        Raises:
            InvalidTask: the Task cannot be one of this backend, or is not where workers look for it.
            TaskWithoutTenant: nothing says whose the call is.
            TypeError, ValueError: the arguments are not JSON, or do not fit the function.
            TenantSlotsError: another leaf, which names what is wrong.
        """
        self.validate_task(task)
        if problem := problem_of_place(task):  # its name was not bound yet when the decorator asked for a valid Task
            raise InvalidTask(problem)
        call: Any = as_json(list(args)), as_json(dict(kwargs))
        (job,) = enqueue.enqueue_many(called_task(task, self), [call])
        if app_settings.IMMEDIATE:
            job = results.as_stored(job)  # it has run, unless a transaction has to commit first
        return results.result_of(job, task)

    def get_result(self, result_id: str) -> AnyResult:
        """From the database, for as long as the job is kept there: see ``RETENTION``.

        Raises:
            TaskResultDoesNotExist: there is no such call.
            UnknownJob: its Task is not in the code any more.
        """
        return results.result_with(result_id)

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        return [*super().check(**kwargs), *configuration.check(self)]
