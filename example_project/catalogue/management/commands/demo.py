from __future__ import annotations

import sys
from argparse import ArgumentTypeError
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from example_project.demo import environment
from example_project.demo.errors import DemoFailed, Stopped


class Command(BaseCommand):
    help = (
        "Show one big shop and five small ones on four workers, with limits and without: the fair order alone. "
        "Uses DATABASE_URL and REDIS_URL when they are set, else embedded servers."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--imports", type=positive, default=300, help="imports of the big shop (default: 300)")
        parser.add_argument(
            "--serve", action="store_true", help="keep the shops, their workers and a web server running until Ctrl-C"
        )
        parser.add_argument("--port", type=positive, help="port of the web server (default: a free one)")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            self._run(**options)
        except DemoFailed as error:
            raise CommandError(str(error)) from error
        except Stopped as stopped:
            self.stderr.write("Stopped; everything that the demo started has ended.")
            sys.exit(128 + stopped.number)

    def _run(self, *, imports: int, serve: bool, port: int | None, **_: Any) -> None:
        place = environment.enter(port)
        # Only now: rich may be missing, which the line above says in plain words.
        from example_project.demo.run import Demo
        from example_project.demo.screen import console_for

        Demo(place, console_for(sys.stdout.isatty()), imports=imports).run(serve=serve)


def positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return number
