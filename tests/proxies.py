"""Proxies of our models, as a project may have them for methods or pages of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.apps import apps


@contextmanager
def proxy_of(model: type[Any]) -> Iterator[type[Any]]:
    """In an app with migrations, as Django wants it. Nobody else in the process finds it afterwards."""
    meta = type("Meta", (), {"proxy": True, "app_label": "tenant_slots"})
    name = f"My{model.__name__}"
    yield type(name, (model,), {"__module__": __name__, "Meta": meta})
    del apps.all_models["tenant_slots"][name.lower()]
    apps.clear_cache()
