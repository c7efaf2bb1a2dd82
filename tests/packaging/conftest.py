from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def wheel() -> Path:
    (found,) = Path(os.environ["DIST"]).glob("*.whl")
    return found
