"""Receivers of a project in a module that only a job imports."""

from __future__ import annotations

from tenant_slots import signals
from tests.workers.receivers import note_of

hear_end = note_of("late-job_ended")
signals.job_ended.connect(hear_end)
