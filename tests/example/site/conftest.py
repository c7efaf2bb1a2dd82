from __future__ import annotations

import django_rq
import pytest
from django.contrib.auth.models import User
from django.test import Client

from example_project.catalogue.models import Membership, Shop


@pytest.fixture(autouse=True)
def _empty_queues() -> None:
    for name in ("default", "imports"):
        django_rq.get_queue(name).empty()


@pytest.fixture
def acme(db: None) -> Shop:
    return Shop.objects.create(slug="acme", name="Acme")


@pytest.fixture
def acme_user(acme: Shop) -> Client:
    return signed_in("alice", acme)


@pytest.fixture
def other_user(db: None) -> Client:
    return signed_in("olga", Shop.objects.create(slug="other", name="Other"))


def signed_in(name: str, shop: Shop | None) -> Client:
    user = User.objects.create_user(name)
    if shop:
        Membership.objects.create(user=user, shop=shop)
    client = Client()
    client.force_login(user)
    return client
