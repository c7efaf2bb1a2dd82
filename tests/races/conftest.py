from __future__ import annotations

import pytest

from tenant_slots import locks


@pytest.fixture
def step_by_step(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The databases of which it was learnt that both updates do not go together."""
    learnt: set[str] = set()
    monkeypatch.setattr(locks, "_step_by_step", learnt)
    return learnt
