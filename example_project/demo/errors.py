from __future__ import annotations

INSTALL = 'python -m pip install -e ".[demo]"'


class DemoFailed(Exception):
    """The demo cannot go on; the message is for the person who started it."""


class Stopped(Exception):
    """A signal asked the demo to end."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by signal {number}")
        self.number = number
