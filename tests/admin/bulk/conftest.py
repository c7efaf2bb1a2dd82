from __future__ import annotations

import pytest

from tenant_slots.admin import actions
from tenant_slots.admin.bulk import chunks


@pytest.fixture(autouse=True)
def _few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than 3 rows are left to a background job, in chunks of 4."""
    monkeypatch.setattr(actions, "MOST_IN_REQUEST", 3)
    monkeypatch.setattr(chunks, "QUEUES_PER_CHUNK", 4)
    monkeypatch.setattr(chunks, "JOBS_PER_CHUNK", 4)
