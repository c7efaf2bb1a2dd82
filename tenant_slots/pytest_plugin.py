"""Fixtures for projects that test with pytest-django; pytest finds them by itself once this package is installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def run_tenant_jobs(db: None) -> Callable[..., Any]:
    """`tenant_slots.testing.run_jobs`."""
    from tenant_slots.testing import run_jobs

    return run_jobs


@pytest.fixture
def assert_tenant_job_enqueued(db: None) -> Callable[..., Any]:
    """`tenant_slots.testing.assert_enqueued`."""
    from tenant_slots.testing import assert_enqueued

    return assert_enqueued


@pytest.fixture
def enqueued_tenant_jobs(db: None) -> Callable[..., Any]:
    """`tenant_slots.testing.enqueued`."""
    from tenant_slots.testing import enqueued

    return enqueued
