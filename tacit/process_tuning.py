"""Settings of the whole process that make training faster: the allocator and the threads.

The command line applies them. Importing the library never does, because they change how a program
uses memory; programs of one's own may call `tune_process` at their start.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_NEVER_TRIM = 2**31 - 1
_MMAP_THRESHOLDS = (1 << 30, 32 << 20)
"""The first is refused by C libraries that cap the value, the second by none."""
_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_TUNABLES, _THREAD_CACHE = "GLIBC_TUNABLES", "glibc.malloc.tcache_count"
_STARTED_AGAIN = "TACIT_STARTED_AGAIN"


@dataclass(frozen=True)
class Tuned:
    """What was done."""

    allocator: bool
    """Whether freed buffers are kept for the next step."""
    threads: int
    """How many processors this process may use at once."""


def tune_process() -> Tuned:
    """Keep large freed buffers for reuse, and use no more threads than there are processors.

    The C library gives large buffers back to the kernel and has them zeroed page by page when they
    are asked for again, at every step. glibc can be told to keep them; elsewhere nothing is done.
    The memory of a process then stays at its peak until it ends. Threads are limited to the
    processors that this process may run on and to its share of them in a container; a lower
    number in OMP_NUM_THREADS or from `torch.set_num_threads` is left as it is.

    >>> tune_process().threads >= 1
    True
    """
    threads = usable_processors()
    _limit_threads(threads)
    return Tuned(_keep_buffers(), threads)


def start_again_if_better() -> None:
    """Start this program again with what glibc is only told at the start of a process.

    Torch asks for aligned memory. What is cut off in front of it stays in a cache that glibc keeps
    for every thread, is given to small objects, and holds large free buffers apart: steps were seen
    to take up to twice the memory, and longer. Without that cache free buffers join. Nothing is
    done where there is no glibc, where the environment has a say in this already, or where a
    program could not be read again: one that comes through the standard input.
    """
    before = os.environ.pop(_STARTED_AGAIN, None)  # glibc hides its settings from some programs
    told, given = os.environ.get(_TUNABLES, ""), sys.orig_argv[1:]
    if before or _THREAD_CACHE in told or not (sys.executable and _has_glibc()):
        return
    if not given or given[0] == "-":
        return
    settings = {
        _TUNABLES: ":".join(filter(None, (told, f"{_THREAD_CACHE}=0"))),
        _STARTED_AGAIN: "yes",
    }
    with suppress(OSError):
        os.execve(sys.executable, [sys.executable, *given], os.environ | settings)


def _has_glibc() -> bool:
    try:
        return bool(os.confstr("CS_GNU_LIBC_VERSION"))
    except (AttributeError, OSError, ValueError):
        return False


def usable_processors() -> int:
    """Processors that this process may use, by its affinity and its quota."""
    if hasattr(os, "sched_getaffinity"):
        allowed = len(os.sched_getaffinity(0))
    else:
        allowed = os.cpu_count() or 1
    return max(1, min(allowed, _quota()))


def _quota() -> int:
    try:
        share, period = _QUOTA.read_text(encoding="ascii").split()
        return math.ceil(int(share) / int(period))
    except (OSError, ValueError):
        return sys.maxsize


def _limit_threads(threads: int) -> None:
    """Before torch is imported through the environment, afterwards by asking it."""
    if "torch" in sys.modules:
        import torch

        if torch.get_num_threads() > threads:
            torch.set_num_threads(threads)
    else:
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))


def _keep_buffers() -> bool:
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    kept = any(mallopt(_M_MMAP_THRESHOLD, size) == 1 for size in _MMAP_THRESHOLDS)
    return kept and mallopt(_M_TRIM_THRESHOLD, _NEVER_TRIM) == 1
