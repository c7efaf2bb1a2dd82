"""What a job leaves to Python's collector, which would otherwise end it in the midst of the next job.

A generator that nobody has gone through ends its blocks when it is collected: it sets the session back to the schema of
its own tenant, or closes a cursor that is none any more, in whatever transaction is open by then. The error of a failed
job holds all that its frames had, and often is a name in one of them.
"""

from __future__ import annotations

import contextvars
import gc
import sys

MORE = 1.05
"""Times as many modules are worth another look: they are part of what a job has loaded."""

_modules = 0
"""How many there were when what was loaded was last put aside."""


def collect() -> None:
    """End what the job that has just ended has left, before its sessions are put back, and in nobody's context."""
    contextvars.copy_context().run(gc.collect)


def put_aside_what_was_loaded() -> None:
    """Modules are never garbage, and to look at all of them takes some 20 ms after each job.

    Not after each job that has loaded one: what else there is at the moment is not collected any more either, once
    nobody holds it.
    """
    global _modules
    if len(sys.modules) > _modules * MORE:
        _modules = len(sys.modules)
        gc.freeze()


def collect_all_again() -> None:
    """What was put aside is looked at as before: the process goes on without a worker, as a test's does."""
    global _modules
    _modules = 0
    gc.unfreeze()
