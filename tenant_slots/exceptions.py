"""Every error of tenant_slots. A leaf's `message` is its text; the facts in it are attributes."""

from __future__ import annotations

import pickle
import string
from typing import Any, TypeVar

from django.db import IntegrityError, OperationalError

from tenant_slots.validation import shown


class _Brief(string.Formatter):
    """A value may be anybody's: it is shown as far as it can be."""

    def convert_field(self, value: Any, conversion: str | None) -> Any:
        return shown(value) if conversion == "r" else super().convert_field(value, conversion)


class TenantSlotsError(Exception):
    """Something went wrong in tenant_slots. Errors can be pickled and copied, and keep their text under ``-OO``."""

    message = "Something went wrong in tenant_slots."

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.__doc__ = cls.message

    def __init__(self, **facts: Any) -> None:
        self.__dict__.update(facts)
        super().__init__(_Brief().vformat(self.message, (), facts))

    def __reduce__(self) -> Any:
        return _remade, (type(self), str(self)), {name: _portable(value) for name, value in self.__dict__.items()}


E = TypeVar("E", bound=TenantSlotsError)


def _remade(kind: type[E], text: str) -> E:
    """An error as it was, without formatting its text again."""
    error = kind.__new__(kind)
    Exception.__init__(error, text)
    return error


def _portable(value: Any) -> Any:
    """What travels of a fact: a lambda that somebody gave as an option arrives as its text."""
    try:
        pickle.dumps(value)
    except Exception:
        return repr(value)
    return value


class ImproperJob(TenantSlotsError):
    message = "@tenant_job cannot be used on {name}: {problem}."


class ImproperReservation(ImproperJob):
    message = "@hold_slot cannot be used on {name}: {problem}."


class UnknownJob(TenantSlotsError):
    message = (
        "{task!r} is neither a function decorated with @tenant_job nor a Task whose backend is TenantSlotsBackend; "
        "deploy the code that has it, or cancel the job."
    )


class UnknownQueue(TenantSlotsError):
    message = "Queue {queue!r} is not in RQ_QUEUES (it has: {known}); add it there or correct the name."


class UnusableQueue(TenantSlotsError):
    message = "RQ_QUEUES[{queue!r}] does not say how to reach its Redis: {problem}. Correct it there."

    queue: str


class InvalidSetting(TenantSlotsError):
    message = "TENANT_SLOTS[{name!r}] is {value!r}: {problem}."


class InvalidLimit(TenantSlotsError):
    message = (
        "{value!r} is not a limit for tenant {tenant!r} on queue {queue!r}: give an integer from {lowest} to {highest}."
    )


class InvalidShare(TenantSlotsError):
    message = "{value!r} is not a share for tenant {tenant!r} on queue {queue!r}: give an integer from 1 to {highest}."


class InvalidRate(TenantSlotsError):
    message = "{value!r} cannot be a rate: {problem}."


class InvalidTenant(TenantSlotsError):
    message = "{value!r} cannot be a tenant: {problem}."


class InvalidKey(TenantSlotsError):
    message = "{value!r} cannot be a key of {task}: {problem}."


class DuplicateNotVisible(TenantSlotsError, IntegrityError):
    message = (
        "{task} has an identical job under way that this transaction cannot see, and the constraint on unique_key "
        "allows no second one; end the transaction and enqueue again, or use READ COMMITTED."
    )


class InvalidObject(TenantSlotsError):
    message = "{task} cannot be enqueued for this {model}: {problem}."


class ObjectGone(TenantSlotsError):
    message = "{model} {pk} does not exist any more, so {task} cannot run; cancel the job before you delete its object."


class MethodNotPicklable(TenantSlotsError):
    message = "Plain RQ would pickle the object of {task}; enqueue the method with its own .enqueue() instead."


class TenantMissing(TenantSlotsError):
    message = '{task} was called without a tenant and TENANT_SLOTS["REQUIRE_TENANT"] is on; pass a tenant.'


class TaskWithoutTenant(TenantSlotsError):
    message = (
        "Nothing says whose call of {task} this is: use .using(tenant=...), @task(tenant=...), "
        'OPTIONS["TENANT"] of the TASKS backend {backend!r}, or `with tenant_scope(...):` around it. Nobody\'s, '
        'without a limit, is one with .using(tenant="").'
    )


class TaskRunLost(TenantSlotsError):
    message = "The process of a run died: {problem}."


class TaskCanceled(TenantSlotsError):
    message = "The Task was canceled: {problem}."


class ResultNotStorable(TenantSlotsError):
    message = "The result of {task} cannot be kept for get_result(): {problem}. Return a reference to it instead."


class TasksNotInstalled(TenantSlotsError, ImportError):
    message = 'Django {version} has no Tasks; install the backport: pip install "tenant-slots[tasks]".'


class InvalidOption(TenantSlotsError):
    message = "{option}={value!r} is not possible for {task}: {problem}."


class RetriesExceeded(TenantSlotsError):
    message = "{task} returned {retry!r} when it had been run again as often as that allows."

    retry: Any


class InvalidCall(TenantSlotsError, TypeError):
    message = (
        "What enqueue_many() was given as call {number} of {task}, a {kind}, is none: make it by .call(), or give"
        ' a pair of positional and keyword arguments, as (("acme",), {{"path": "a.csv"}}).'
    )

    number: int
    """Its place among the calls, from 0."""


class ArgumentNotJSON(TenantSlotsError):
    message = "Argument {argument!r} of {task} cannot be stored as JSON: {problem}."


class ArgumentsTooLarge(TenantSlotsError):
    message = (
        'The arguments of {task} take {size} bytes; TENANT_SLOTS["MAX_ARGS_BYTES"] allows {limit}. Pass a reference.'
    )


class InvalidContext(TenantSlotsError):
    message = "What {path} gave as the context of a job cannot be kept: {problem}."


class NoSchema(TenantSlotsError):
    message = "Job {job} of {task} does not run, for it has no schema of a tenant to run in: {problem}."


class StaleVersion(TenantSlotsError):
    message = "{tenant_queue} has been changed since you read it; its limit is {max_job} now. Look again, then decide."

    tenant_queue: Any
    max_job: int
    version: int


class BulkChangeOvertaken(TenantSlotsError):
    message = "Another run of this bulk change goes on with chunk {chunk}; this one ends."


class UnknownBulkAction(TenantSlotsError):
    message = (
        "Admin site {site!r} has no action {action!r} on {model} in this process; start the workers with the admin "
        "in INSTALLED_APPS and with the code that has the action."
    )


class InvalidTime(TenantSlotsError):
    message = "{value!r} is no time that can be kept: {problem}."


class UnreadableColumn(TenantSlotsError):
    message = "{column} of job {job} are not what was stored: {problem}; cancel the job and enqueue it again."


class UnreadableBulkChange(TenantSlotsError):
    message = "{column} of {row} are not what was stored: {problem}; put them right by SQL, or act again."


class TimeHasPassed(TenantSlotsError):
    message = "{until} has passed already; give a time to come."


class UnknownTenantQueue(TenantSlotsError):
    message = "Tenant {tenant!r} has no tenant queue on {queue!r} and AUTO_CREATE is off; add it in the admin."


class TenantQueueFull(TenantSlotsError):
    message = (
        "Tenant {tenant!r} may have {max_waiting} jobs waiting on queue {queue!r}; {jobs} more do not fit. Try later."
    )


class TenantQueueInUse(TenantSlotsError):
    message = "{tenant_queue} cannot be deleted: {holding} jobs hold its slots and {waiting} wait. Let them end first."

    tenant_queue: Any
    holding: int
    waiting: int


class TenantQueueLocked(TenantSlotsError, OperationalError):
    seconds: float
    message = (
        "Tenant queue {tenant_queue} cannot be changed: another transaction kept it locked for {seconds} s, or waits "
        "for what this one has locked. Try again; let transactions that change several do so in one order and end soon."
    )


class UnsupportedDatabase(TenantSlotsError):
    message = (
        "Database {database!r} is {vendor}, which cannot hold the slots: use PostgreSQL. If it is not the one that "
        'TENANT_SLOTS["DATABASE"] names, return False from allow_migrate() of a database router for "tenant_slots".'
    )


class NotMigrated(TenantSlotsError):
    message = (
        "Database {database!r} lacks the tables of tenant_slots; run: python manage.py migrate --database {database}"
    )


class NotRetryable(TenantSlotsError):
    message = "Job {job} is {state}; only a failed or canceled job can be retried."


class NotInRQ(TenantSlotsError):
    message = (
        "Job {job} is {state} as this object has it, so RQ has no job for it that one could look up or depend on; each "
        "attempt gets one of its own. To run a job after it: other.using(after=[job]).enqueue(...)."
    )


class NoFreeSlot(TenantSlotsError):
    message = "Tenant {tenant!r} got no slot on queue {queue!r} within {timeout} s: {reason}."


class HoldInTransaction(TenantSlotsError):
    message = (
        "hold_slot() cannot work inside a transaction of the SQLite database {database!r}; hold the slot around it."
    )


class ErrorNotFormattable(TenantSlotsError):
    message = "{kind} was raised, and formatting it raised {problem}; look at its __str__, __notes__ and __cause__."


class InvalidProgress(TenantSlotsError):
    message = "report_progress() was given {name}={value}, which is not possible: {problem}."


class JobsDoNotEnd(TenantSlotsError):
    message = (
        "run_jobs() has run {most} jobs, and more wait, the next one of {task}: one seems to enqueue itself. Raise "
        "`most` if that is how many there are."
    )
