"""Change how many jobs of a tenant may run at once."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from tenant_slots import line, stats, tenants
from tenant_slots.exceptions import TenantSlotsError
from tenant_slots.management.commands._table import printable


class Command(BaseCommand):
    help = "Sets a tenant's limit on a queue. Waiting jobs that then fit start at once; lowering stops no job."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("tenant")
        parser.add_argument("queue")
        parser.add_argument("max_job", metavar="N", help="how many jobs may run at once; 0 lets none start")

    def handle(self, *args: Any, tenant: str, queue: str, max_job: str, **options: Any) -> None:
        try:
            with line.naming_missing_tables():
                self.stdout.write(printable(change_limit(tenant, queue, max_job)))
        except TenantSlotsError as error:
            raise CommandError(printable(str(error))) from error


def change_limit(tenant: str, queue: str, text: str) -> str:
    """Set the limit and say what changed. A wrong limit is refused before a missing row is made."""
    limit = tenants.require_limit(_number(text), tenant, queue)
    row = tenants.tenant_queue_for(tenant, queue)
    before, waiting = row.max_job, sum(usage.waiting for usage in stats.usage(tenant=tenant, queue=queue))
    tenants.set_limit(row, limit, by="slots_limit")
    return f"{row}: {before} → {limit}, {waiting} {'job was' if waiting == 1 else 'jobs were'} waiting"


def _number(text: str) -> int | str:
    """The number, or the text itself for the error to show."""
    try:
        return int(text)
    except ValueError:
        return text
