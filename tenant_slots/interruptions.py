"""What is raised in the midst of any code, and is not about that code: who swallows errors lets it through."""

from __future__ import annotations

from rq.timeouts import JobTimeoutException


class EndedAtOnce(SystemExit):
    """Raised in the function of a job whose process was told to end at once: its run is interrupted, and no failure."""


class SweepTimeout(BaseException):
    """The sweep took too long: the database's session may be dead without knowing it, or something else was slow.

    The alarm rings once. So it is no Exception, of which Django's signals and the project's code swallow any.
    """


NOT_OF_THE_CODE = (KeyboardInterrupt, EndedAtOnce, SweepTimeout, JobTimeoutException)
"""A user, the worker, a sweep, or RQ, which gives a job no second alarm: also one that calls ``enqueue()``, say."""
