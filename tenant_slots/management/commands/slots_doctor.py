from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentTypeError
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import Error

from tenant_slots.management.commands._output import Output, cannot_be_asked
from tenant_slots.management.commands._table import printable
from tenant_slots.repair import doctor, liveness, sweeper
from tenant_slots.repair.finding import Finding


class Command(BaseCommand):
    help = (
        "Check counters against jobs against RQ, and whether workers and sweeps are there. Exit code 0 when all is "
        "well, 1 when something is wrong, 2 when the database cannot be asked, or an argument is wrong."
    )
    requires_system_checks = ("tenant_slots",)  # others may ask the database, which may be what is wrong

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--fix", action="store_true", help="repair as the sweep does, then check again")
        only = parser.add_mutually_exclusive_group()
        only.add_argument("--check", type=_names, default=(), help=f"only these: {','.join(doctor.CHECKS)}")
        only.add_argument(
            "--here", action="store_true", help="only whether a worker of this host lives: the probe of a container"
        )
        parser.add_argument("--json", action="store_true", dest="as_json", help="print a JSON document")

    def handle(
        self, *args: Any, fix: bool, as_json: bool, check: Sequence[str] | str, here: bool, **options: Any
    ) -> None:
        check = _as_given_in_code(check)
        if here and fix:
            raise CommandError("--here looks for a worker, which a sweep does not start: leave out --fix", returncode=2)
        try:
            findings = left = [*liveness.without_worker_here()] if here else doctor.findings(*check)
            if fix and findings:
                sweeper.run_now(f"slots_doctor {os.getpid()}")
                left = doctor.findings(*check)
        except Error as error:
            Output(self.stderr).write(cannot_be_asked(error))
            sys.exit(2)
        self._out = Output(self.stdout)
        self._print_json(findings, left) if as_json else self._print(findings, left)
        self._out.end()
        if left:
            sys.exit(1)

    def _print_json(self, findings: list[Finding], left: list[Finding]) -> None:
        document = {
            "findings": [asdict(finding) for finding in findings],
            "left": [asdict(finding) for finding in left],
        }
        self._out.write(json.dumps(document, indent=2))

    def _print(self, findings: list[Finding], left: list[Finding]) -> None:
        for finding in findings:
            fixed = "" if finding in left else " (repaired)"
            parts = (finding.kind, _where(finding), finding.meaning)
            self._out.write(printable(f"{': '.join(filter(None, parts))}{fixed}"))
        if not findings:
            self._out.write("all is well")


def _where(finding: Finding) -> str:
    """What it has of a tenant, a queue and a job; empty where it concerns everything."""
    queue = f"{finding.tenant!r} on {finding.queue!r}" if finding.tenant else f"queue {finding.queue!r}"
    return " ".join(filter(None, (finding.queue and queue, finding.job)))


def _as_given_in_code(names: Sequence[str] | str) -> list[str]:
    """`call_command` parses no keyword arguments."""
    text = names if isinstance(names, str) else ",".join(names)
    try:
        return _names(text) if names or isinstance(names, str) else []
    except ArgumentTypeError as error:
        raise CommandError(str(error)) from error


def _names(text: str) -> list[str]:
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    if unknown := [name for name in names if name not in doctor.CHECKS]:
        raise ArgumentTypeError(
            f"there is no check {', '.join(map(repr, unknown))}; there are {', '.join(doctor.CHECKS)}"
        )
    return names
