"""Holds a slot without being a job: ``python -m tests.faults.reserve TENANT NAME HISTORY PATH TIMEOUT``."""

from __future__ import annotations

import sys

import django


def main(tenant: str, name: str, history: str, path: str, timeout: str) -> None:
    from tenant_slots import hold_slot
    from tests.faults.jobs import wait_for
    from tests.faults.observer import observed

    with hold_slot(tenant, "imports", timeout=float(timeout)), observed(history, tenant, name):
        wait_for(path)


if __name__ == "__main__":
    django.setup()
    main(*sys.argv[1:])
