"""What is done once a transaction of our database has committed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext

from django.db import connections, transaction
from rq.timeouts import JobTimeoutException

from tenant_slots.conf import app_settings

logger = logging.getLogger("tenant_slots")


def after_commit(function: Callable[[], object]) -> None:
    """Run when the current transaction of our database has committed, at once without one.

    Where the caller has switched autocommit off, Django runs it when that is on again after a commit.

    What was committed stands whatever happens here, so an error is logged and left to the sweep. The end of the time of
    a job that does this in its function is none, as little as that of a sweep: there is no second alarm.
    """

    def run() -> None:
        try:
            function()
        except JobTimeoutException:
            raise
        except Exception:
            logger.exception("a step after a commit failed; the sweep will make up for it")

    # Without autocommit Django takes no function outside of a block, but those from inside one.
    with transaction.atomic(using=app_settings.DATABASE) if _is_manual() else nullcontext():
        transaction.on_commit(run, using=app_settings.DATABASE)


def _is_manual() -> bool:
    connection = connections[app_settings.DATABASE]
    return not connection.in_atomic_block and not connection.get_autocommit()
