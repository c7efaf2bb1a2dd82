"""Settings of a project that has queues on other Redis servers too: TEST_OTHER_SERVERS names those."""

from __future__ import annotations

import os

from tests.settings import *  # noqa: F403
from tests.settings import RQ_QUEUES as QUEUES

RQ_QUEUES = QUEUES | {f"other_{n}": {"URL": url} for n, url in enumerate(os.environ["TEST_OTHER_SERVERS"].split())}
