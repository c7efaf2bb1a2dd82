"""Worker classes that a control or a test needs in a process of its own."""

from __future__ import annotations

from typing import Any

from tenant_slots.workers import TenantPreforkWorker
from tenant_slots.workers.baseline import Baseline


class ForgetfulWorker(TenantPreforkWorker):
    """The control: its work-horses put nothing back."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        Baseline.restore = lambda _: None  # type: ignore[method-assign]


class CarelessWorker(ForgetfulWorker):
    """The control of what cannot be put back: its work-horses go on whatever a job has left."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        Baseline.is_restorable = lambda _: True  # type: ignore[method-assign]
