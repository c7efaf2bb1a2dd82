from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from tenant_slots.repair import doctor, sweeper
from tenant_slots.repair.doctor import Finding


class Command(BaseCommand):
    help = "Check counters against jobs against RQ. Exit code 1 when something is wrong, 0 when all is well."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--fix", action="store_true", help="repair as the sweep does, then check again")
        parser.add_argument("--json", action="store_true", dest="as_json", help="print a JSON document")

    def handle(self, *args: Any, fix: bool, as_json: bool, **options: Any) -> None:
        findings = doctor.findings()
        if fix and findings:
            sweeper.run_now(f"slots_doctor {os.getpid()}")
            left = doctor.findings()
        else:
            left = findings
        self._print_json(findings, left) if as_json else self._print(findings, left)
        if left:
            sys.exit(1)

    def _print_json(self, findings: list[Finding], left: list[Finding]) -> None:
        document = {
            "findings": [asdict(finding) for finding in findings],
            "left": [asdict(finding) for finding in left],
        }
        self.stdout.write(json.dumps(document, indent=2))

    def _print(self, findings: list[Finding], left: list[Finding]) -> None:
        for finding in findings:
            fixed = "" if finding in left else " (repaired)"
            where = f"{finding.tenant!r} on {finding.queue!r}" if finding.queue else "everywhere"
            self.stdout.write(f"{finding.kind}: {where} {finding.job}: {finding.meaning}{fixed}")
        if not findings:
            self.stdout.write("all is well")
