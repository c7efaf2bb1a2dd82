"""Signals at the decision points; each is sent after the commit, and a failing receiver changes nothing.

===================  ====================================  ===================================================
signal               arguments                             sent when
===================  ====================================  ===================================================
``jobs_enqueued``    ``jobs``                              new jobs are committed
``jobs_admitted``    ``jobs``                              waiting jobs got a slot
``job_started``      ``job``                               a process begins to run a job
``job_ended``        ``job``                               a job is finished, failed or canceled
``job_put_back``     ``job``, ``reason``                   a job goes back to wait: it retries, or its process died
``swept``            ``report``                            a sweep has repaired something
``limit_changed``    ``tenant_queue``, ``change``          a method of a tenant queue changed a limit or a pause
===================  ====================================  ===================================================

The sender is ``TenantJob``; for ``swept`` and ``limit_changed`` it is ``TenantQueue``. A ``change`` is a
``models.Change``.
"""

from __future__ import annotations

from django.dispatch import Signal

jobs_enqueued = Signal()
jobs_admitted = Signal()
job_started = Signal()
job_ended = Signal()
job_put_back = Signal()
swept = Signal()
limit_changed = Signal()
