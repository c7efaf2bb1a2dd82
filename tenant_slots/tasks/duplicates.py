"""Until when a job stands for its duplicates: what ``unique_until`` may be."""

from __future__ import annotations

START, END = "start", "end"


def unique_until_problem(value: object) -> str:
    """Why it cannot be meant; empty when it can."""
    return "" if value in (START, END) else f'give "{START}" or "{END}"'
