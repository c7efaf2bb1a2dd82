"""Errors say what to do, travel between processes, and keep their text when Python strips docstrings."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tenant_slots.exceptions import InvalidOption, TenantQueueFull, TenantSlotsError, UnknownQueue
from tests.processes import ROOT

LEAVES = TenantSlotsError.__subclasses__()


def pickled(error: TenantSlotsError) -> Any:
    return pickle.loads(pickle.dumps(error))


@pytest.mark.parametrize("again", [pickled, copy.copy, copy.deepcopy])
def test_an_error_that_was_pickled_or_copied_is_the_same(again: Callable[[TenantSlotsError], Any]) -> None:
    error = TenantQueueFull(tenant="acme", queue="imports", max_waiting=3, jobs=1)
    error.add_note("while importing")
    other = again(error)
    assert type(other) is TenantQueueFull
    assert (str(other), other.tenant, other.max_waiting) == (str(error), "acme", 3)
    assert other.__notes__ == ["while importing"]


def test_an_error_about_something_that_cannot_be_pickled_can_be_pickled_too() -> None:
    error = InvalidOption(option="retry", value=lambda: 3, task="f", problem="it must be of type Retry")
    assert str(pickled(error)) == str(error)


@pytest.mark.parametrize("leaf", LEAVES, ids=lambda leaf: str(leaf.__name__))
def test_the_message_is_the_documentation_too(leaf: type[TenantSlotsError]) -> None:
    assert leaf.message != TenantSlotsError.message
    assert leaf.__doc__ == leaf.message


def test_messages_are_there_without_docstrings() -> None:
    script = "from tenant_slots.exceptions import UnknownQueue; print(UnknownQueue(queue='x', known='y'))"
    ran = subprocess.run([sys.executable, "-OO", "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == str(UnknownQueue(queue="x", known="y"))
