"""Output of a command whose work is to be done whether or not anybody reads about it; and what several of them say."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from django.core.management.base import CommandError, OutputWrapper
from django.db import Error


def cannot_be_asked(error: Error) -> str:
    """Of the database: it is away, or has not the tables, or not the rights to read them."""
    return f"the database cannot be asked: {str(error).strip()}"


class Output:
    """Lines for whoever reads them, until he goes: as ``head`` does, which has read enough.

    A character that the encoding of the terminal does not have, as an arrow in Latin-1, is written as an escape. What
    cannot be written, as on a full disk, ends the command only when its work is done.
    """

    def __init__(self, stream: OutputWrapper) -> None:
        self._stream = stream
        self.has_reader = stream._out is not None  # closed by the shell, as by ``>&-``
        self._problem: OSError | None = None

    def write(self, text: str) -> None:
        self._do(lambda: self._stream.write(self._writable(text)))

    def flush(self) -> None:
        """What is still in memory goes out now, as far as it can."""
        self._do(self._stream.flush)

    def end(self) -> None:
        """Raises CommandError: something could not be written, and nobody will read it."""
        self.flush()
        if self._problem is not None:
            raise CommandError(f"not all of the output could be written: {self._problem}")

    def _do(self, something: Callable[[], None]) -> None:
        if self.has_reader:
            try:
                something()
            except BrokenPipeError:
                self._has_gone()
            except OSError as error:
                self._problem = error
                self._forget()

    def _writable(self, text: str) -> str:
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        return text.encode(encoding, "backslashreplace").decode(encoding)

    def _has_gone(self) -> None:
        """Whatever else is written here goes nowhere."""
        self.has_reader = False
        with suppress(OSError), open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), self._file.fileno())

    def _forget(self) -> None:
        """What is in memory goes nowhere, as Python would complain of it at its exit, with an exit code of 120.

        Only that: the stream may be the one of a process that goes on, when there is room again.
        """
        with suppress(OSError), open(os.devnull, "w") as nowhere:
            number = self._file.fileno()
            kept = os.dup(number)
            try:
                os.dup2(nowhere.fileno(), number, inheritable=os.get_inheritable(number))
                self._file.flush()
            finally:
                os.dup2(kept, number, inheritable=os.get_inheritable(number))
                os.close(kept)

    @property
    def _file(self) -> Any:
        """The wrapper is a stream too, without a number of its own."""
        return self._stream._out
