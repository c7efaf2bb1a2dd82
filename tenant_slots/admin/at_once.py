"""What an action does while somebody waits for the page: each object by itself, so that one that cannot be changed
keeps no other from being changed.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from django.http import HttpRequest

from tenant_slots.admin.confirmed import FAILED, GONE, Confirmed
from tenant_slots.admin.refusals import GONE_MEANWHILE, NOT_TAKEN, fails_alone, problem
from tenant_slots.db.transactions import kept_unbroken, patience, waiting_at_most

LEAST_PATIENCE = 0.05
"""Seconds for a lock once others have used up what all objects of an action have together. We keep one for less."""


class AtOnce:
    """An action on one object after the other. They wait no longer for locks, all together, than one does elsewhere."""

    def __init__(self, action: Confirmed, model_admin: Any, request: HttpRequest, values: dict[str, Any]) -> None:
        self._action, self._model_admin, self._request, self._values = action, model_admin, request, values
        self._patient_until = time.monotonic() + patience.get()
        self.outcomes: Counter[str] = Counter()
        self.problems: list[str] = []

    def change(self, one: Any) -> None:
        self.outcomes[self._outcome(one)] += 1

    def _outcome(self, one: Any) -> str:
        try:
            with waiting_at_most(self._patience()), kept_unbroken():
                return self._action.apply(self._model_admin, self._request, one, self._values)
        except GONE_MEANWHILE:
            return GONE
        except NOT_TAKEN as error:
            if not fails_alone(error):
                raise
            self.problems.append(problem(one, error))
            return FAILED

    def _patience(self) -> float:
        left = self._patient_until - time.monotonic()
        return max(LEAST_PATIENCE, min(patience.get(), left))
