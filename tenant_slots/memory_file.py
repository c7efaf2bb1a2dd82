"""Files without a name, which a process shares with the children that it forks."""

from __future__ import annotations

import errno
import os
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress


def memory_file(label: str) -> int:
    """A descriptor that children inherit by fork and lose by exec.

    Args:
        label: what ``/proc/PID/fd`` says that it is.
    """
    if hasattr(os, "memfd_create"):
        return os.memfd_create(label)  # no full disk can keep anything from memory
    return disk_file(label)


def memory_file_of_size(label: str, size: int) -> int:
    """As `memory_file`, with room for so many bytes: in memory nobody makes it larger or smaller."""
    if not hasattr(os, "memfd_create"):
        file = disk_file(label)
        os.ftruncate(file, size)
        return file
    import fcntl  # not on Windows

    file = os.memfd_create(label, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(file, size)
    with suppress(OSError):  # in a sandbox that knows no seals
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return file


def disk_file(label: str) -> int:
    """As `memory_file`, in the folder for temporary files. Raises OSError when that takes no more."""
    descriptor, path = tempfile.mkstemp(prefix=f"{label}_")
    os.unlink(path)
    return descriptor


class SharedFile:
    """One that is still found by a process in which a job has closed it, or has another file under its number."""

    def __init__(self, label: str) -> None:
        self._maker, self._descriptor = os.getpid(), memory_file(label)
        self._identity = identity(self._descriptor)
        weakref.finalize(self, os.close, self._descriptor)

    @contextmanager
    def opened(self) -> Iterator[int]:
        """Its descriptor. Raises OSError when this process cannot get at it any more."""
        if self._is(self._descriptor):
            yield self._descriptor
            return
        found = os.open(f"/proc/{self._maker}/fd/{self._descriptor}", os.O_RDWR | os.O_CLOEXEC)
        try:
            if not self._is(found):
                raise OSError(errno.EBADF, "a job has closed a file that it has not opened")
            yield found
        finally:
            os.close(found)

    def _is(self, descriptor: int) -> bool:
        try:
            return identity(descriptor) == self._identity
        except OSError:
            return False


def identity(descriptor: int) -> tuple[int, int]:
    """Of what a process has under this number. Raises OSError when that is nothing."""
    known = os.fstat(descriptor)
    return known.st_dev, known.st_ino
