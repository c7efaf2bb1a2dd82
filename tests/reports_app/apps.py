from django.apps import AppConfig


class ReportsConfig(AppConfig):
    name = "tests.reports_app"
    default_auto_field = "django.db.models.BigAutoField"
