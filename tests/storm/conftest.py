"""Only when asked for: STORM_MINUTES=5 STORM_SEED=7 python -m pytest tests/storm -s"""

from __future__ import annotations

import os

collect_ignore = [] if os.environ.get("STORM_MINUTES") else ["test_storm.py"]

from tests.faults.conftest import (  # noqa: E402, F401
    _module_postgres,
    _module_valkey,
    postgres,
    valkey,
    workers,
)
