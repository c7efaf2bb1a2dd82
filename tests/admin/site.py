"""The admin as a browser uses it: who is signed in, what a form would send, what an action answers."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any
from uuid import uuid4

from django.contrib.auth.models import Permission, User
from django.db.models import F
from django.test import Client
from django.urls import reverse

from tenant_slots.models import State, TenantJob, TenantQueue
from tests.factories import fresh, waiting_job

QUEUES = reverse("admin:tenant_slots_tenantqueue_changelist")
JOBS = reverse("admin:tenant_slots_tenantjob_changelist")
LIVE = reverse("admin:tenant_slots_tenantqueue_live")
HOSTILE = "<script>alert(1)</script>"


def signed_in(*permissions: str, superuser: bool = False) -> Client:
    user = User.objects.create(username=f"staff {uuid4()}", is_staff=True, is_superuser=superuser)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client = Client()
    client.force_login(user)
    return client


class Form(HTMLParser):
    """The values that a browser would send back for the form of an admin's add or change page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.values: dict[str, str] = {}
        self.feed(page)

    def handle_starttag(self, tag: str, pairs: Any) -> None:
        found = dict(pairs)
        sent = found.get("type") not in ("checkbox", "submit") or "checked" in found
        if tag == "input" and sent and found.get("name") and found["name"] != "csrfmiddlewaretoken":
            self.values[found["name"]] = found.get("value") or ("on" if found.get("type") == "checkbox" else "")


def change_page(row: TenantQueue | TenantJob, view: str = "change") -> str:
    return reverse(f"admin:tenant_slots_{row._meta.model_name}_{view}", args=[row.pk])


def loaded(client: Client, row: TenantQueue) -> dict[str, str]:
    return Form(client.get(change_page(row)).content.decode()).values


def run_action(client: Client, url: str, action: str, *rows: Any, **data: Any) -> Any:
    return client.post(url, {"action": action, "_selected_action": [row.pk for row in rows], **data}, follow=True)


def asked(client: Client, url: str, action: str, *rows: Any) -> Any:
    """The page in between, and what its form would send back."""
    page = run_action(client, url, action, *rows)
    sent = {**Form(page.content.decode()).values, "_selected_action": [row.pk for row in rows]}
    return page, sent


def confirmed(client: Client, url: str, action: str, *rows: Any, **data: Any) -> Any:
    _, sent = asked(client, url, action, *rows)
    return client.post(url, {**sent, **data}, follow=True)


def messages_of(response: Any) -> list[str]:
    return [str(message) for message in response.context["messages"]]


def actions_offered(client: Client, url: str) -> set[str]:
    form = client.get(url).context.get("action_form")
    return {name for name, _ in form.fields["action"].choices if name} if form else set()


def in_use(row: TenantQueue, jobs: int) -> TenantQueue:
    """The row with so many of its slots in use."""
    for _ in range(jobs):
        running_job(row)
    return fresh(row)


def running_job(row: TenantQueue) -> TenantJob:
    TenantQueue.objects.filter(pk=row.pk).update(current_job=F("current_job") + 1)
    return waiting_job(row, state=State.RUNNING, attempt=1)
