from __future__ import annotations

from django.apps import AppConfig


class CatalogueConfig(AppConfig):
    name = "example_project.catalogue"
    label = "catalogue"
    verbose_name = "Product catalogue"

    def ready(self) -> None:
        from example_project.catalogue import jobs  # noqa: F401  the system checks look at every decorated job
