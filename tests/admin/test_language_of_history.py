"""What staff have done is told in the language of whoever reads it."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from tenant_slots.admin import actions
from tenant_slots.models import BulkChange
from tests.admin.bulk_changes import carried_out
from tests.admin.site import JOBS, QUEUES, asked, change_page
from tests.factories import tenant_queue, waiting_job

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("most", [200, 0])
def test_what_staff_have_done_is_in_the_language_of_its_reader(boss: Client, monkeypatch: Any, most: int) -> None:
    monkeypatch.setattr(actions, "MOST_IN_REQUEST", most)
    row = tenant_queue(max_job=0)
    job, _ = waiting_job(row), waiting_job(row)
    german = {"headers": {"Accept-Language": "de"}}
    for url, action, one, typed in ((JOBS, "cancel", job, {}), (QUEUES, "cancel_waiting", row, {"typed": "1"})):
        _, sent = asked(boss, url, action, one)
        boss.post(url, {**sent, **typed, "reason": "x"}, **german)
        if not most:
            carried_out(BulkChange.objects.latest("pk"))

    def read(**options: Any) -> Any:
        texts = [event.text for event in boss.get(change_page(job), **options).context["slots_events"]]
        return texts[-1], [
            (line.what, line.new) for line in boss.get(change_page(row), **options).context["slots_history"]
        ]

    assert read() == ("state: waiting → canceled (x)", [("waiting jobs canceled:", "1")])
    assert read(**german) == ("Zustand: wartend → abgebrochen (x)", [("wartende Jobs abgebrochen:", "1")])
