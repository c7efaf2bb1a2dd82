"""Worker classes that a control or a test needs in a process of its own."""

from __future__ import annotations

from typing import Any

import rq

from tenant_slots.workers import TenantPreforkWorker, TenantSimpleWorker, TenantWorker, supervisor
from tenant_slots.workers.baseline import Baseline
from tests.workers import receivers


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


class HearingWorker(TenantWorker):
    """Knows receivers of the project, as one whose apps connect some."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        receivers.connect()
        supervisor.SECONDS_TO_TELL = 1


class HearingPreforkWorker(TenantPreforkWorker):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        receivers.connect()
        supervisor.SECONDS_TO_TELL = 1


class Broken:
    """Meets an error in its loop that nobody has foreseen."""

    def reorder_queues(self, reference_queue: Any) -> None:
        raise RuntimeError("nobody has foreseen it")


class BrokenWorker(Broken, TenantWorker):
    pass


class BrokenPreforkWorker(Broken, TenantPreforkWorker):
    pass


class BrokenSimpleWorker(Broken, TenantSimpleWorker):
    pass


class BrokenStockWorker(Broken, rq.Worker):
    """The control."""
