"""The admins are plain ModelAdmins: a theme subclasses them, registers them again, and replaces Django's base page."""

from __future__ import annotations

import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.test import Client

from tenant_slots.models import TenantQueue
from tests.factories import fresh, tenant_queue, waiting_job

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("theme")]

THEME = Path(__file__).parent.parent / "theme" / "templates"


def with_theme() -> list[Any]:
    templates = deepcopy(settings.TEMPLATES)
    templates[0]["DIRS"] = [THEME]
    return templates


@pytest.fixture
def theme(settings: Any) -> None:
    settings.TEMPLATES = with_theme()


@pytest.fixture(params=["ours_first", "theirs_first"])
def site(request: Any) -> str:
    return f"/{request.param}/tenant_slots"


def test_every_page_is_drawn_on_the_themes_base(boss: Client, site: str) -> None:
    row = tenant_queue("acme", max_job=2)
    job = waiting_job(row)
    queues, jobs = f"{site}/tenantqueue/", f"{site}/tenantjob/"
    paths = [
        queues,
        f"{queues}add/",
        f"{queues}{row.pk}/change/",
        f"{queues}{row.pk}/limit/",
        f"{queues}{row.pk}/reset/",
        f"{queues}overview/",
        f"{queues}workers/",
        jobs,
        f"{jobs}{job.pk}/change/",
    ]
    for path in paths:
        page = boss.get(path).content.decode()
        assert "tests/theme.css" in page, path
        assert "tenant_slots/admin.css" in page, path


def test_links_and_forms_stay_on_the_themes_site(boss: Client, site: str) -> None:
    row = tenant_queue("acme", max_job=2)
    page = boss.get(f"{site}/tenantqueue/").content.decode()
    assert f'href="{site}/tenantqueue/{row.pk}/limit/"' in page
    assert f'data-url="{site}/tenantqueue/live/"' in page
    assert "/admin/" not in re.sub(r"/static/\S+", "", page)


def test_an_action_asks_and_acts(boss: Client, site: str) -> None:
    row = tenant_queue("acme")
    data = {"action": "pause", "_selected_action": [row.pk]}
    asked = boss.post(f"{site}/tenantqueue/", data)
    assert "acme on imports: running 0, limit 1, waiting 0" in asked.content.decode()
    assert "tests/theme.css" in asked.content.decode()
    boss.post(f"{site}/tenantqueue/", {**data, "confirm": "yes", "reason": "feeds are broken"})
    assert fresh(row).paused


def test_the_change_form_takes_the_themes_widgets(boss: Client, site: str) -> None:
    row = tenant_queue("acme")
    assert 'class="theme-input"' in boss.get(f"{site}/tenantqueue/{row.pk}/change/").content.decode()
    boss.post(f"{site}/tenantqueue/{row.pk}/change/", {"max_job": 7, "reason": "", "seen_version": row.version})
    assert TenantQueue.objects.get().max_job == 7
