"""A ModelAdmin of ours for a proxy of the project."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from tenant_slots.admin import TenantJobAdmin, TenantQueueAdmin
from tenant_slots.models import State, TenantJob, TenantQueue
from tests.admin.site import confirmed
from tests.admin.test_half_of_the_pages import Site, rows, shown, use
from tests.factories import fresh
from tests.proxies import proxy_of

pytestmark = pytest.mark.django_db(transaction=True)


def test_the_pages_and_actions_of_a_proxy_do_what_those_of_the_model_do(
    boss: Client, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with proxy_of(TenantQueue) as queues, proxy_of(TenantJob) as jobs:
        site = Site(name="half")
        site.register(queues, TenantQueueAdmin)
        site.register(jobs, TenantJobAdmin)
        use(site, settings, monkeypatch)
        row, running = rows()
        waiting = TenantJob.objects.waiting().get()
        shown(boss, "mytenantqueue/", f"mytenantqueue/{row.pk}/change/", f"mytenantqueue/{row.pk}/delete/",
              "mytenantqueue/overview/", "mytenantjob/", f"mytenantjob/{running.pk}/change/")  # fmt: skip
        confirmed(boss, "/half/tenant_slots/mytenantqueue/", "pause", row, reason="")
        confirmed(boss, "/half/tenant_slots/mytenantjob/", "cancel", waiting, reason="")
        assert (fresh(row).paused, fresh(waiting).state) == (True, State.CANCELED)
        confirmed(boss, "/half/tenant_slots/mytenantqueue/", "delete_selected", row, reason="")
        assert TenantQueue.objects.filter(pk=row.pk).exists(), "one of its jobs runs"
        confirmed(boss, "/half/tenant_slots/mytenantjob/", "release", running, force="on", reason="it hangs")
        assert fresh(running).state == State.FAILED
        confirmed(boss, "/half/tenant_slots/mytenantqueue/", "delete_selected", row, reason="")
        assert not TenantQueue.objects.exists()
