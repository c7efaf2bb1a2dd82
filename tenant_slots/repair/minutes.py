"""Minutes that are over are counted, once for all: what the overview shows of a week.

What is counted are the jobs themselves, by the times in their rows. So whoever counts a minute for the second time
comes to the same, be it two sweeps at once or one after another that died. The last minute that was counted says where
to go on, whenever that is.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from functools import partial
from typing import Any

from tenant_slots import fleet
from tenant_slots.conf import app_settings
from tenant_slots.db import clock
from tenant_slots.db.clock import DatabaseNow, minute_of, start_of
from tenant_slots.models import QueueMinute
from tenant_slots.models.queue_minute import ALL_QUEUES, COUNTED, GAUGES, VERSION_LENGTH
from tenant_slots.queue_names import usable_queues
from tenant_slots.repair import totals
from tenant_slots.repair.contact import Contact
from tenant_slots.repair.report import Report
from tenant_slots.repair.row_of_all import unless_held
from tenant_slots.repair.turns import fitting_lease
from tenant_slots.stats import minute_counts

KEPT = 7 * 24 * 60 + 240
"""Minutes: a week, and a little more for the first point of its chart."""

FIRST = 60
"""How many are counted when nobody has ever done so."""

LATE = 10
"""Minutes after which one is counted once more, for the jobs whose end was not committed the first time."""

AT_ONCE = 360
"""Most in one transaction."""

SECONDS_TO_COUNT = 1
"""After which a sweep leaves the rest to the next one."""

ROWS_PER_STATEMENT = 500

Place = tuple[int, str]

Looks = dict[str, dict[str, int | None]]
"""What is, by queue and column."""


def count_minutes(report: Report, contact: Contact) -> None:
    """All that are over and nobody has counted; one query while there is none."""
    last, now = _last_counted()
    if last == now - 1:
        return
    deadline = time.monotonic() + fitting_lease(SECONDS_TO_COUNT)
    looks = _looks()
    while _count_next(looks) and time.monotonic() < deadline:
        pass


def _count_next(looks: Looks) -> bool:
    """In one transaction. Whether there are more to count, which wait while somebody holds what is counted."""
    return bool(unless_held("minutes that are over are not counted yet", partial(_count_some, looks)))


def _count_some(looks: Looks) -> bool:
    """Under a lock of the last one before them. Whether there are more.

    Where the last one is still to come the clock was set back: minutes that come for the second time are counted again.
    """
    totals.lock()
    last, now = _last_counted(lock=True)
    first = now - FIRST if last is None else max(now - KEPT, min(now - 1, last + 1))
    end = min(now, first + AT_ONCE)
    counted = _counts_of(first, end)
    if last is not None:
        counted |= _counts_of(max(now - KEPT, first - LATE), min(first, end - LATE))
    _store(counted, looks if end == now else {}, end - 1)
    if first // 60 != end // 60:
        QueueMinute.objects.filter(minute__lt=start_of(now - KEPT)).delete()
    return end < now


def _last_counted(*, lock: bool = False) -> tuple[int | None, int]:
    """The minute, and the one that is not over yet by the database's clock."""
    rows = QueueMinute.objects.filter(queue=ALL_QUEUES).order_by("-minute").annotate(now=DatabaseNow())
    found = (rows.select_for_update() if lock else rows).values_list("minute", "now").first()
    return (None, minute_of(clock.now())) if found is None else (minute_of(found[0]), minute_of(found[1]))


def _counts_of(first: int, end: int) -> dict[Place, Counter[str]]:
    """By minute and queue, `ALL_QUEUES` for each minute."""
    counted: dict[Place, Counter[str]] = {(minute, ALL_QUEUES): Counter() for minute in range(first, end)}
    if counted:
        for (minute, queue), counts in minute_counts.counts_of(first, end).items():
            counted[minute, queue] = counts
            counted[minute, ALL_QUEUES].update(counts)
    return counted


def _looks() -> Looks:
    """What is now. Asked outside of a transaction, as Redis may take its time."""
    known = fleet.known()
    found: Looks = {queue: {name: counts[name] for name in GAUGES} for queue, counts in minute_counts.gauges().items()}
    everywhere: dict[str, int | None] = {name: sum(one[name] or 0 for one in found.values()) for name in GAUGES}
    everybody = set()
    for queue in usable_queues():  # others' workers may be on the same server
        alive = {member.key for member in known.of(queue) if member.is_alive}
        everybody |= alive
        if alive or queue in known.unasked:
            workers = None if queue in known.unasked else len(alive)
            found.setdefault(queue, dict.fromkeys(GAUGES, 0))["workers"] = workers
    return {**found, ALL_QUEUES: {**everywhere, "workers": None if known.unasked else len(everybody)}}


def _store(counted: dict[Place, Counter[str]], looks: Looks, looked_at: int) -> None:
    """A count never falls: a failed job that runs again has failed all the same."""
    minutes = {minute for minute, _ in counted}
    within = {"minute__gte": start_of(min(minutes)), "minute__lte": start_of(max(minutes))}
    stored = {(minute_of(row.minute), row.queue): row for row in QueueMinute.objects.filter(**within)}
    changed: dict[Place, QueueMinute] = {}
    grown: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def change(place: Place, values: dict[str, Any]) -> None:
        is_new = place not in stored
        row = stored.setdefault(place, QueueMinute(minute=start_of(place[0]), queue=place[1]))
        if is_new or any(getattr(row, name) != value for name, value in values.items()):
            changed[place] = row
            vars(row).update(values)

    for place, counts in counted.items():
        before = stored.get(place)
        values = {name: max(counts[name], getattr(before, name, 0)) for name in COUNTED}
        grown[place[1]].update({name: value - getattr(before, name, 0) for name, value in values.items()})
        change(place, values)
    for queue, look in looks.items():
        change((looked_at, queue), look)
    if looks:
        change((looked_at, ALL_QUEUES), {"version": app_settings.PROJECT_VERSION[:VERSION_LENGTH]})
    QueueMinute.objects.bulk_create(
        changed.values(),
        ROWS_PER_STATEMENT,
        update_conflicts=True,
        unique_fields=["queue", "minute"],
        update_fields=[*COUNTED, *GAUGES, "version"],
    )
    totals.add(grown)
