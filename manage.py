#!/usr/bin/env python
"""Django's command line for the example project."""

import os
import sys


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")
    try:
        from django.core.management import execute_from_command_line
    except ImportError as error:
        raise SystemExit('Django is not installed in this Python. Run: python -m pip install -e ".[demo]"') from error
    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
