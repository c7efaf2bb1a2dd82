from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.test import override_settings

from tenant_slots.db import transactions


@pytest.fixture(autouse=True)
def _nobody_loses_patience(no_workers: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """With an actor that stands still, however long the others take on a busy machine."""
    monkeypatch.setattr(transactions, "STANDSTILL_SHARE", 0)
    monkeypatch.setattr(transactions, "LOCK_TIMEOUT_SECONDS", 60)
    with override_settings(TENANT_SLOTS={"LEASE_TTL": 600, "BEAT_INTERVAL": 200}):
        yield
