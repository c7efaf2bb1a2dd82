"""What is raised in the midst of any code, and is not about that code: who swallows errors lets it through."""

from __future__ import annotations

from rq.timeouts import JobTimeoutException


class EndedAtOnce(SystemExit):
    """Raised in the function of a job whose process was told to end at once: its run is interrupted, and no failure."""


NOT_OF_THE_CODE = (KeyboardInterrupt, EndedAtOnce, JobTimeoutException)
"""A user, the worker, or RQ, which gives a job no second alarm: also one that calls ``enqueue()``, say."""
