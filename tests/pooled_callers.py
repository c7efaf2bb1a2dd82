"""Two threads whose transactions have all sessions of Django's pool, as requests of a busy site, call us."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Callable
from contextlib import closing

import django


def main(what: str) -> list[str]:
    from django.db import connection, connections, transaction

    from tenant_slots import hold_slot
    from tests import jobs

    def hold(tenant: str) -> None:
        with hold_slot(tenant, "imports"):
            pass

    calls: dict[str, Callable[[str], object]] = {
        "hold_slot": hold,
        "enqueue": lambda tenant: jobs.add.enqueue(1, 2, tenant=tenant),
    }
    all_have_one, came_of = threading.Barrier(2), []

    def request(tenant: str) -> None:
        with closing(connections["default"]), transaction.atomic():
            connection.cursor().execute("SELECT 1")
            all_have_one.wait()
            try:
                calls[what](tenant)
            except Exception as error:
                came_of.append(repr(error))
            else:
                came_of.append("done")

    threads = [threading.Thread(target=request, args=(tenant,)) for tenant in ("acme", "umbrella")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return came_of


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    django.setup()
    sys.stdout.write(json.dumps(main(sys.argv[1])))
