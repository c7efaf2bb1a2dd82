"""What a process of jobs does for libraries, when a run's end is recorded or there are no more jobs."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from tenant_slots import parting


@pytest.fixture(autouse=True)
def no_threads_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parting, "_threads", {})


@pytest.fixture
def made() -> list[str]:
    return []


def test_each_wish_is_granted_once_when_there_are_no_more_jobs(made: list[str]) -> None:
    def wish() -> None:
        made.append("sent")

    with parting.granting_wishes():
        for _ in range(3):
            parting.before_parting(wish)
        assert not parting.has_wishes(parts=False)
        assert parting.has_wishes(parts=True)
        parting.grant_soon()
        assert made == []
    assert made == ["sent"]


def test_one_that_is_to_be_granted_soon_is_so_before_the_next_job(made: list[str]) -> None:
    def wish() -> None:
        made.append("sent")

    with parting.granting_wishes():
        parting.before_parting(wish, soon=True)
        parting.before_parting(wish)
        assert parting.has_wishes(parts=False)
        parting.grant_soon()
        assert made == ["sent"]
        assert not parting.has_wishes(parts=True)
    assert made == ["sent"]


def test_what_is_new_since_a_library_began_to_send_is_for_the_parting(
    made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parting, "SECONDS_TO_GRANT", 0)
    server_answers = threading.Event()

    def wish() -> None:
        made.append("sent")
        assert server_answers.wait(30)

    with parting.granting_wishes():
        parting.before_parting(wish, soon=True)
        parting.grant_soon()
        parting.before_parting(wish, soon=True)
        parting.grant_soon()
        assert not parting.has_wishes(parts=False)
        assert parting.has_wishes(parts=True)
        server_answers.set()
        monkeypatch.setattr(parting, "SECONDS_TO_GRANT", 30)
        parting._threads[wish].join(30)
    assert made == ["sent", "sent"]


def test_where_no_process_ends_nobody_waits_for_anything(made: list[str]) -> None:
    parting.before_parting(lambda: made.append("sent"), soon=True)
    parting.grant_soon()
    assert not parting.has_wishes(parts=True)
    assert made == []


def test_one_run_of_many_is_not_the_end_of_its_process(made: list[str]) -> None:
    with parting.granting_wishes():
        with parting.granting_wishes():
            parting.before_parting(lambda: made.append("sent"))
        assert made == []
    assert made == ["sent"]


def test_they_are_granted_at_the_same_time_and_one_that_fails_is_logged(
    made: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    first, second = threading.Event(), threading.Event()

    def one() -> None:
        first.set()
        assert second.wait(30)
        made.append("one")

    def other() -> None:
        second.set()
        assert first.wait(30)
        made.append("other")
        raise OSError("no collector")

    with parting.granting_wishes():
        parting.before_parting(one)
        parting.before_parting(other)
    assert sorted(made) == ["one", "other"]
    assert "no collector" in caplog.text


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Until it is open nothing can be sent."""
    monkeypatch.setattr(parting, "SECONDS_TO_GRANT", 0.01)
    event = threading.Event()
    yield event
    event.set()
    for thread in parting._threads.values():
        thread.join()


def test_nobody_waits_for_longer_nor_asks_again_meanwhile(gate: threading.Event, made: list[str]) -> None:
    def wish() -> None:
        made.append("asked")
        gate.wait(30)

    with parting.granting_wishes():
        for _ in range(3):
            parting.before_parting(wish, soon=True)
            parting.grant_soon()
    assert made == ["asked"]


def test_a_system_without_room_for_a_thread_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, made: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    def full(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with parting.granting_wishes():
        parting.before_parting(lambda: made.append("sent"))
        monkeypatch.setattr(threading.Thread, "start", full)
    monkeypatch.undo()
    assert made == []
    assert "can't start new thread" in caplog.text


def test_a_child_that_a_job_has_forked_does_nothing_of_it(made: list[str]) -> None:
    with parting.granting_wishes():
        parting.before_parting(lambda: made.append("sent"))
        child = os.fork()
        if not child:
            os._exit(parting.has_wishes(parts=True))
        assert os.waitpid(child, 0)[1] == 0
    assert made == ["sent"]
