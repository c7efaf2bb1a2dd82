"""Files without a name, which a process shares with the children that it forks."""

from __future__ import annotations

import os
import tempfile


def memory_file(label: str) -> int:
    """A descriptor that children inherit by fork and lose by exec.

    Args:
        label: what ``/proc/PID/fd`` says that it is.
    """
    if hasattr(os, "memfd_create"):
        return os.memfd_create(label)  # no full disk can keep anything from memory
    return disk_file(label)


def disk_file(label: str) -> int:
    """As `memory_file`, in the folder for temporary files. Raises OSError when that takes no more."""
    descriptor, path = tempfile.mkstemp(prefix=f"{label}_")
    os.unlink(path)
    return descriptor
