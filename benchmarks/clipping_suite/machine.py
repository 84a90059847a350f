"""What a process asks of its machine: threads, the allocator, peak memory (Linux)."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_TRIM = 2**31 - 1
_MMAP_THRESHOLDS = (1 << 30, 32 << 20)
_MEGABYTE = 1e6


def thread_variables(threads: int) -> dict[str, str]:
    """Environment variables that hold numerical libraries to so many threads."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return {name: str(threads) for name in names}


def allocator_variables() -> dict[str, str]:
    """Environment variables for what `tune_allocator` cannot change later (glibc): no caches of
    small pieces, which keep large free buffers apart."""
    return {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}


def hold_to(threads: int) -> None:
    """Keep this process on as many cores as it may have threads; XLA counts cores."""
    allowed = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, allowed[:threads])


def tune_allocator() -> bool:
    """Keep large buffers for the next step instead of returning them to the kernel.

    Raises M_MMAP_THRESHOLD and M_TRIM_THRESHOLD; False where the C library has no mallopt.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    mapped = any(mallopt(_M_MMAP_THRESHOLD, size) == 1 for size in _MMAP_THRESHOLDS)
    return mapped and mallopt(_M_TRIM_THRESHOLD, _LARGEST_TRIM) == 1


class PeakMemory:
    """Peak resident memory above what was resident at the start, in megabytes.

    Pages of files, which is code that was called for the first time meanwhile, are not counted.
    """

    def __init__(self) -> None:
        self._start = _status("VmRSS") - _status("RssFile")
        self.forget_peak()

    def forget_peak(self) -> None:
        """Count the peak from here on; what is held still counts from the start."""
        Path("/proc/self/clear_refs").write_text("5")

    def megabytes(self) -> float:
        """The peak since it was last forgotten, above the start."""
        peak = _status("VmHWM") - _status("RssFile")
        return max(0.0, (peak - self._start) / _MEGABYTE)


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    raise OSError(f"/proc/self/status has no {field}")


def total_megabytes() -> float:
    """Memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _MEGABYTE


def processor() -> str:
    """The name of the processor, as the kernel gives it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return "unknown"
