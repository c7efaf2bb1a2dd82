"""Which backend of ``TASKS`` knows a call today: the settings may have other names than when it was enqueued."""

from __future__ import annotations

from tenant_slots.django_tasks.api import AnyTask, task_backends


def alias_today(enqueued: str, task: AnyTask) -> str:
    """The alias that the call was enqueued by while that is one of ours; else its Task's, else any; else as it was."""
    return next((alias for alias in (enqueued, task.backend, *task_backends) if _is_ours(alias)), enqueued)


def _is_ours(alias: str) -> bool:
    try:
        return bool(getattr(task_backends[alias], "gives_slots", False))
    except Exception:  # there is none of this name, or it cannot be made: Django tells whoever uses it
        return False
