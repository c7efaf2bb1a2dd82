"""Jobs of a module whose import takes until a file exists, as that of a large library may take seconds."""

from __future__ import annotations

import os
from pathlib import Path

from tenant_slots import tenant_job
from tests.faults.observer import observed
from tests.jobs import wait_for_door

if "TEST_IMPORT_DOOR" in os.environ:
    Path(os.environ["TEST_IMPORT_DOOR"]).with_suffix(".reached").touch()
    wait_for_door(os.environ["TEST_IMPORT_DOOR"])


@tenant_job("imports", tenant="tenant")
def quick(tenant: str, name: str, history: str) -> None:
    with observed(history, tenant, name):
        pass
