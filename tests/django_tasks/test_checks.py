"""What Django's ``check`` says of a backend's entry in ``TASKS``."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import override_settings

from tests.django_tasks.api import task_backends

BACKEND = "tenant_slots.tasks_backend.TenantSlotsBackend"


def somebody(*args: Any, **kwargs: Any) -> str:
    return "acme"


def check_ids(**params: Any) -> list[Any]:
    with override_settings(TASKS={"default": {"BACKEND": BACKEND, **params}}):
        return [message.id for message in task_backends["default"].check()]


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"QUEUES": []},
        {"QUEUES": ["imports", "reports"]},
        {"QUEUES": {"imports": {}}.keys()},
        {"OPTIONS": None},
        {"OPTIONS": {"TENANT": "tenant_id"}},
        {"OPTIONS": {"TENANT": somebody}},
        {"OPTIONS": {"TENANT": f"{__name__}.somebody"}},
    ],
)
def test_what_is_right_passes(params: dict[str, Any]) -> None:
    assert check_ids(**params) == []


def test_a_queue_that_rq_lacks_is_named() -> None:
    assert check_ids(QUEUES=["imports", "import"]) == ["tenant_slots.E016"]
    assert check_ids(QUEUES=["imports", "import", 7]) == ["tenant_slots.E016"] * 2


@pytest.mark.parametrize("queues", ["imports", b"imports", None, 7, [["imports"]]], ids=repr)
def test_queues_that_are_no_list_of_names_are_named(queues: Any) -> None:
    with override_settings(TASKS={"default": {"BACKEND": BACKEND, "QUEUES": queues}}):
        (message,) = task_backends["default"].check()
    assert (message.id, message.hint) == ("tenant_slots.E016", 'Give a list, such as ["imports"].')
    assert str(message.msg) == f"""TASKS['default']["QUEUES"] is {queues!r}."""


@pytest.mark.parametrize(
    "options",
    [
        {"TENNANT": "tenant_id"},
        {7: "tenant_id"},
        {"TENANT": 7},
        {"TENANT": "tenant id"},
        {"TENANT": "shop.nowhere.tenant"},
        {"TENANT": ".tenant"},
        ["TENANT"],
        "tenant_id",
        7,
    ],
)
def test_an_option_that_cannot_be_meant_is_named(options: dict[str, Any]) -> None:
    assert check_ids(OPTIONS=options) == ["tenant_slots.E017"]
