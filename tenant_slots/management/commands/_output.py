"""Output of a command whose work is to be done whether or not anybody reads about it."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from django.core.management.base import OutputWrapper


class Output:
    """Lines for whoever reads them, until he goes: as ``head`` does, which has read enough.

    A character that the encoding of the terminal does not have, as an arrow in Latin-1, is written as an escape.
    """

    def __init__(self, stream: OutputWrapper) -> None:
        self._stream = stream
        self.has_reader = stream._out is not None  # closed by the shell, as by ``>&-``

    def write(self, text: str) -> None:
        if self.has_reader:
            try:
                self._stream.write(self._writable(text))
            except BrokenPipeError:
                self._has_gone()

    def end(self) -> None:
        """What is still in memory goes out now: Python would complain of it at its exit, with an exit code of 120."""
        if self.has_reader:
            try:
                self._stream.flush()
            except BrokenPipeError:
                self._has_gone()

    def _writable(self, text: str) -> str:
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        return text.encode(encoding, "backslashreplace").decode(encoding)

    def _has_gone(self) -> None:
        """What is in memory still goes nowhere."""
        self.has_reader = False
        with suppress(OSError), open(os.devnull, "w") as nowhere:
            stream: Any = self._stream._out  # the wrapper is a stream too, without a number of its own
            os.dup2(nowhere.fileno(), stream.fileno())
