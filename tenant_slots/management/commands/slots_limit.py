"""Change how many jobs of a tenant, or of many, may run at once."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from tenant_slots import stats, tenants
from tenant_slots.db.migrated import naming_missing_tables
from tenant_slots.exceptions import TenantSlotsError
from tenant_slots.management import limit_file
from tenant_slots.management.commands._table import printable
from tenant_slots.management.limit_file import Difference, Line, Problem


class Command(BaseCommand):
    help = (
        "Sets a tenant's limit on a queue, or the limits of many tenants from a file. "
        "Waiting jobs that then fit start at once; lowering stops no job."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("tenant", nargs="?")
        parser.add_argument("queue", nargs="?")
        parser.add_argument("max_job", nargs="?", metavar="N", help="how many jobs may run at once; 0 lets none start")
        parser.add_argument("--queue", dest="file_queue", metavar="QUEUE", help="the queue of --tenant-file")
        parser.add_argument("--tenant-file", metavar="FILE", help="CSV with the columns tenant and limit")
        parser.add_argument("--dry-run", action="store_true", help="with --tenant-file: say what would change")
        parser.add_argument("--json", action="store_true", dest="as_json", help="with --tenant-file: print JSON")
        parser.add_argument("--by", default="slots_limit", help="who sets the limit (default: slots_limit)")
        parser.add_argument("--reason", default="", help="why, for the signal limit_changed")

    def handle(self, *args: Any, **options: Any) -> None:
        _require_one_form(options)
        try:
            with naming_missing_tables():
                self._set_many(**options) if options["tenant_file"] else self._set_one(**options)
        except TenantSlotsError as error:
            raise CommandError(printable(str(error))) from error

    def _set_one(self, *, tenant: str, queue: str, max_job: str, by: str, reason: str, **_: Any) -> None:
        self.stdout.write(printable(change_limit(tenant, queue, max_job, by=by, reason=reason)))

    def _set_many(
        self, *, tenant_file: str, file_queue: str, dry_run: bool, as_json: bool, by: str, reason: str, **_: Any
    ) -> None:
        lines, problems = _read(tenant_file, file_queue)
        difference = limit_file.compare(lines, file_queue)
        problems = sorted([*problems, *limit_file.missing_rows(difference.new, file_queue)], key=lambda one: one.line)
        if problems:
            self._print(Difference(), problems, as_json, dry_run)
            raise CommandError(f"{_lines_are(problems)} wrong; nothing was changed")
        if not dry_run:
            difference, problems = limit_file.apply(difference, file_queue, by=by, reason=reason)
        self._print(difference, problems, as_json, dry_run)
        if problems:
            raise CommandError(f"{_lines_are(problems)} not applied, the others are; run the command again")

    def _print(self, difference: Difference, problems: list[Problem], as_json: bool, dry_run: bool) -> None:
        if as_json:
            self.stdout.write(as_document(difference, problems))
            return
        self.stdout.write(as_text(difference, dry_run))
        for problem in problems:
            self.stderr.write(printable(f"line {problem.line}: {problem.problem}"))


def as_text(difference: Difference, dry_run: bool) -> str:
    lines = [f"{changed.line.tenant}: {changed.old} → {changed.line.max_job}" for changed in difference.changed]
    lines += [f"{line.tenant}: new, {line.max_job}" for line in difference.new]
    counts = f"{len(difference.changed)} changed, {len(difference.new)} new, {difference.unchanged} unchanged"
    return "\n".join([*map(printable, lines), f"would be: {counts}" if dry_run else counts])


def as_document(difference: Difference, problems: list[Problem]) -> str:
    document = {
        "changed": [
            {"tenant": changed.line.tenant, "old": changed.old, "new": changed.line.max_job}
            for changed in difference.changed
        ],
        "new": [{"tenant": line.tenant, "new": line.max_job} for line in difference.new],
        "unchanged": difference.unchanged,
        "errors": [asdict(problem) for problem in problems],
    }
    return json.dumps(document, indent=2)


def change_limit(tenant: str, queue: str, text: str, *, by: str, reason: str) -> str:
    """Set the limit and say what changed. A wrong limit is refused before a missing row is made."""
    limit = tenants.require_limit(limit_file.number_or_text(text), tenant, queue)
    row = tenants.tenant_queue_for(tenant, queue)
    before, waiting = row.max_job, sum(usage.waiting for usage in stats.usage(tenant=tenant, queue=queue))
    row.set_limit(limit, by=by, reason=reason)
    return f"{row}: {before} → {limit}, {waiting} {'job was' if waiting == 1 else 'jobs were'} waiting"


def _require_one_form(options: dict[str, Any]) -> None:
    one = [options[name] for name in ("tenant", "queue", "max_job")]
    many = [options[name] for name in ("tenant_file", "file_queue")]
    of_many = any(many) or options["dry_run"] or options["as_json"]
    if not (all(many) and one == [None] * 3) and (None in one or of_many):
        raise CommandError("give either TENANT QUEUE N, or --queue QUEUE and --tenant-file FILE")


def _read(path: str, queue: str) -> tuple[list[Line], list[Problem]]:
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            return limit_file.read(file, queue)
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{path} cannot be read: {error}") from error


def _lines_are(problems: list[Problem]) -> str:
    return "1 line is" if len(problems) == 1 else f"{len(problems)} lines are"
