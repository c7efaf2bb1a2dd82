"""What a job leaves to Python's collector, which would otherwise end it in the midst of the next job.

A generator that nobody has gone through ends its blocks when it is collected: it sets the session back to the schema of
its own tenant, or closes a cursor that is none any more, in whatever transaction is open by then. The error of a failed
job holds all that its frames had, and often is a name in one of them.
"""

from __future__ import annotations

import gc
import sys

_modules = 0
"""How many there were when what was loaded was last put aside."""


def collect() -> None:
    """End what the job that has just ended has left, while all is still its own.

    What is loaded by now is put aside: to look at it after each job would take some 20 ms.
    """
    global _modules
    gc.collect()
    if len(sys.modules) != _modules:
        _modules = len(sys.modules)
        gc.freeze()


def collect_all_again() -> None:
    """What was put aside is looked at as before: the process goes on without a worker, as a test's does."""
    global _modules
    _modules = 0
    gc.unfreeze()
