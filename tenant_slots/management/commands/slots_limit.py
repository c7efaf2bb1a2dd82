"""Change how many jobs of a tenant, or of many, may run at once, and a tenant's share and rate."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import InterfaceError, OperationalError

from tenant_slots.db.migrated import naming_missing_tables
from tenant_slots.exceptions import TenantSlotsError
from tenant_slots.management import limit_file, row_limits
from tenant_slots.management.commands._output import Output, cannot_be_asked
from tenant_slots.management.commands._table import printable
from tenant_slots.management.limit_file import Changed, Difference, Line, Problem


class Command(BaseCommand):
    help = (
        "Sets a tenant's limit on a queue, or the limits of many tenants from a file. "
        "Waiting jobs that then fit start as workers get free; lowering stops no job. With --share, sets the part of "
        "the workers' time that the tenant gets when tenants compete for workers; with --rate, how many jobs may start "
        "in a time."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("tenant", nargs="?")
        parser.add_argument("queue", nargs="?")
        parser.add_argument("max_job", nargs="?", metavar="N", help="how many jobs may run at once; 0 lets none start")
        parser.add_argument("--share", metavar="SHARE", help="1 to 1000, instead of N or with it")
        rate = parser.add_mutually_exclusive_group()
        rate.add_argument("--rate", metavar="RATE", help="how many jobs may start in a time: 100/s, 100/m, 10/h, 5/d")
        rate.add_argument("--no-rate", action="store_true", help="take the rate away")
        parser.add_argument("--burst", metavar="B", help="with --rate: how many may start at once after a quiet time")
        parser.add_argument("--queue", dest="file_queue", metavar="QUEUE", help="the queue of --tenant-file")
        parser.add_argument("--tenant-file", metavar="FILE", help="CSV with the columns tenant and limit")
        parser.add_argument("--dry-run", action="store_true", help="with --tenant-file: say what would change")
        parser.add_argument("--json", action="store_true", dest="as_json", help="with --tenant-file: print JSON")
        parser.add_argument("--by", default="slots_limit", help="who sets the limit (default: slots_limit)")
        parser.add_argument("--reason", default="", help="why, for the history and the signal limit_changed")

    def handle(self, *args: Any, **options: Any) -> None:
        _require_one_form(options)
        self._out, self._errors = Output(self.stdout), Output(self.stderr)
        try:
            with naming_missing_tables():
                self._set_many(**options) if options["tenant_file"] else self._set_one(**options)
        except (TenantSlotsError, row_limits.NotChanged) as error:
            raise CommandError(printable(str(error))) from error
        except (OperationalError, InterfaceError) as error:
            raise CommandError(printable(cannot_be_asked(error))) from error
        finally:
            self._out.flush()
        self._out.end()

    def _set_one(self, *, tenant: str, queue: str, by: str, reason: str, **wanted: Any) -> None:
        for text in row_limits.change(tenant, queue, wanted, by=by, reason=reason):
            self._out.write(printable(text))

    def _set_many(
        self, *, tenant_file: str, file_queue: str, dry_run: bool, as_json: bool, by: str, reason: str, **_: Any
    ) -> None:
        lines, problems = _read(tenant_file, file_queue)
        difference = limit_file.compare(lines, file_queue)
        problems = sorted([*problems, *limit_file.missing_rows(difference.new, file_queue)], key=lambda one: one.line)
        if problems:
            self._print(Difference(), problems, as_json, dry_run)
            raise CommandError(f"{_lines_are(problems)} wrong; nothing was changed")
        if dry_run:
            self._print(difference, problems, as_json, dry_run)
            return
        tell = _be_silent if as_json else self._tell_now
        applied = limit_file.apply(difference, file_queue, by=by, reason=reason, tell=tell)
        self._print(applied.done, applied.problems, as_json, dry_run)
        if applied.away_at is not None:
            raise CommandError(f"the database went away at line {applied.away_at}; run the command again for the rest")
        if applied.problems:
            raise CommandError(f"{_lines_are(applied.problems)} not applied, the others are; run the command again")

    def _tell(self, one: Changed | Line) -> None:
        if isinstance(one, Changed):
            text = f"{one.line.tenant}: {one.old} → {one.line.max_job}"
        else:
            text = f"{one.tenant}: new, {one.max_job}"
        self._out.write(printable(text))

    def _tell_now(self, one: Changed | Line) -> None:
        """A pipe or a file would get hundreds of them at once, and none of the last ones if the command is killed."""
        self._tell(one)
        self._out.flush()

    def _print(self, difference: Difference, problems: list[Problem], as_json: bool, dry_run: bool) -> None:
        if as_json:
            self._out.write(as_document(difference, problems))
            return
        if dry_run:
            for changed in difference.changed:
                self._tell(changed)
            for line in difference.new:
                self._tell(line)
        counts = f"{len(difference.changed)} changed, {len(difference.new)} new, {difference.unchanged} unchanged"
        self._out.write(f"would be: {counts}" if dry_run else counts)
        for problem in problems:
            self._errors.write(printable(f"line {problem.line}: {problem.problem}"))


def _be_silent(one: Changed | Line) -> None: ...


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


def _require_one_form(options: dict[str, Any]) -> None:
    row = [options[name] for name in ("tenant", "queue")]
    wanted = [name for name in row_limits.STEPS if row_limits.is_wanted(options, name)]
    file = [options[name] for name in ("tenant_file", "file_queue")]
    for_one = None not in row and bool(wanted)
    for_many = all(file)
    of_one = row != [None, None] or bool(wanted) or options["burst"] is not None
    of_many = any(file) or options["dry_run"] or options["as_json"]
    if not (for_one and not of_many) and not (for_many and not of_one):
        raise CommandError(
            "give either TENANT QUEUE with N, --share, --rate or --no-rate, or --queue QUEUE and --tenant-file FILE"
        )
    if options["burst"] is not None and options["rate"] is None:
        raise CommandError("give --rate with --burst")


def _read(path: str, queue: str) -> tuple[list[Line], list[Problem]]:
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            return limit_file.read(file, queue)
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{path} cannot be read: {error}") from error


def _lines_are(problems: list[Problem]) -> str:
    return "1 line is" if len(problems) == 1 else f"{len(problems)} lines are"
