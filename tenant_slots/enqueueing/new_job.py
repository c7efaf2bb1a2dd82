"""What one call becomes: a job that is not stored yet, and what is known of it meanwhile."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.db.models.base import ModelState

from tenant_slots.models import TenantJob


@dataclass
class NewJob:
    tenant: str
    job: TenantJob
    is_counted: bool = False
    """Whether a throttle has counted it, which happens once however often its insert is tried."""


class Stored(NamedTuple):
    """What came of the calls of one `enqueue_many`."""

    jobs: list[TenantJob]
    """The job of every call."""
    new: list[TenantJob]
    """Those that were stored, in the order of the calls."""
    held: list[TenantJob]
    """Others that could not start meanwhile, for which their tenant may have lost a turn."""


def job_with(**values: Any) -> TenantJob:
    """A job that is not stored, with these values by attribute; uuid and mutable ones are to be replaced by its own."""
    return job_like(_blank(), values)


@functools.cache
def _blank() -> TenantJob:
    return TenantJob()


def job_like(alike: TenantJob, own: Mapping[str, Any]) -> TenantJob:
    """A job with the values of another one that is not stored either, but for its own, by attribute.

    To go through every field, as the constructor does, takes half of the time of enqueueing many jobs, and a tenth of
    that of enqueueing one.
    """
    job = TenantJob.__new__(TenantJob)
    vars(job).update(vars(alike))
    vars(job).update(own, _state=ModelState())
    return job
