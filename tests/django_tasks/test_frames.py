"""Sentry and its like show the variables of each frame of an error, and hide a secret by the name of its variable."""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from tenant_slots.running import errors
from tests.contrib import jobs
from tests.django_tasks import tasks
from tests.factories import work

pytestmark = pytest.mark.django_db(transaction=True)

SECRET = "471100815"


@pytest.mark.parametrize(
    ("enqueue", "function"),
    [
        pytest.param(lambda: jobs.fails.enqueue("acme", SECRET), "fails", id="decorated"),
        pytest.param(lambda: tasks.ask_partner.enqueue("acme", SECRET), "ask_partner", id="a Task"),
    ],
)
def test_the_frames_between_a_worker_and_the_function_name_no_argument(
    enqueue: Callable[[], object], function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames: list[FrameType] = []
    described = errors.described

    def keep_frames(error: BaseException) -> Any:
        trace = error.__traceback__
        while trace is not None:
            frames.append(trace.tb_frame)
            trace = trace.tb_next
        return described(error)

    monkeypatch.setattr(errors, "described", keep_frames)
    enqueue()
    work()
    shown = [frame.f_code.co_name for frame in frames if SECRET in repr(frame.f_locals)]
    assert shown == [function]
