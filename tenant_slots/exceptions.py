"""Every error of tenant_slots. A leaf's docstring is its message; its facts are attributes."""

from __future__ import annotations

from typing import Any


class TenantSlotsError(Exception):
    """Something went wrong in tenant_slots."""

    def __init__(self, **facts: Any) -> None:
        self.__dict__.update(facts)
        super().__init__((self.__doc__ or "").format(**facts))


class ImproperJob(TenantSlotsError):
    """@tenant_job cannot be used on {name}: {problem}."""


class UnknownJob(TenantSlotsError):
    """{task!r} is no function decorated with @tenant_job; deploy the code that has it, or cancel the job."""


class UnknownQueue(TenantSlotsError):
    """Queue {queue!r} is not in RQ_QUEUES (it has: {known}); add it there or correct the name."""


class InvalidSetting(TenantSlotsError):
    """TENANT_SLOTS[{name!r}] is {value!r}: {problem}."""


class InvalidLimit(TenantSlotsError):
    """{value!r} is not a limit for tenant {tenant!r} on queue {queue!r}: give an integer from {lowest} to {highest}."""


class InvalidTenant(TenantSlotsError):
    """{value!r} cannot be a tenant: {problem}."""


class InvalidKey(TenantSlotsError):
    """{value!r} cannot be the key of a job of {task}: {problem}."""


class InvalidObject(TenantSlotsError):
    """{task} cannot be enqueued for this {model}: {problem}."""


class ObjectGone(TenantSlotsError):
    """{model} {pk} does not exist any more, so {task} cannot run; cancel the job before you delete its object."""


class MethodNotPicklable(TenantSlotsError):
    """Plain RQ would pickle the object of {task}; enqueue the method with its own .enqueue() instead."""


class TenantMissing(TenantSlotsError):
    """{task} was called without a tenant and TENANT_SLOTS["REQUIRE_TENANT"] is on; pass a tenant."""


class InvalidOption(TenantSlotsError):
    """{option}={value!r} is not possible for {task}: {problem}."""


class ArgumentNotJSON(TenantSlotsError):
    """Argument {argument!r} of {task} cannot be stored as JSON: {problem}."""


class ArgumentsTooLarge(TenantSlotsError):
    """The arguments of {task} take {size} bytes; TENANT_SLOTS["MAX_ARGS_BYTES"] allows {limit}. Pass a reference."""


class StaleVersion(TenantSlotsError):
    """{tenant_queue} has been changed since you read it; its limit is {max_job} now. Look again, then decide."""


class TimeHasPassed(TenantSlotsError):
    """{until} has passed already; give a time to come."""


class UnknownTenantQueue(TenantSlotsError):
    """Tenant {tenant!r} has no row for queue {queue!r} and AUTO_CREATE is off; add it in the admin."""


class TenantQueueFull(TenantSlotsError):
    """Tenant {tenant!r} may have {max_waiting} jobs waiting on queue {queue!r}; {jobs} more do not fit. Try later."""


class TenantQueueInUse(TenantSlotsError):
    """{tenant_queue} cannot be deleted: {holding} jobs hold its slots and {waiting} wait. Let them end first."""

    tenant_queue: Any
    holding: int
    waiting: int


class NotMigrated(TenantSlotsError):
    """Database {database!r} lacks the tables of tenant_slots; run: python manage.py migrate --database {database}"""


class NotRetryable(TenantSlotsError):
    """Job {job} is {state}; only a failed or canceled job can be retried."""


class NoFreeSlot(TenantSlotsError):
    """Tenant {tenant!r} got no slot on queue {queue!r} within {timeout} s: {reason}."""


class HoldInTransaction(TenantSlotsError):
    """hold_slot() cannot work inside a transaction of the SQLite database {database!r}; hold the slot around it."""


class InvalidProgress(TenantSlotsError):
    """report_progress() was given {name}={value}, which is not possible: {problem}."""
