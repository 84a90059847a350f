"""Starts contestants' processes, gives them turns within a time limit, and reads their answers."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from clipping_suite import job as job_module
from clipping_suite.contestants import CONTESTANTS, Entry
from clipping_suite.job import Answer, Job, Outcome
from clipping_suite.machine import allocator_variables, thread_variables

_SUITE = Path(__file__).resolve().parent.parent
_FASTDP = "CLIPPING_SUITE_FASTDP"


@dataclass(frozen=True)
class Environment:
    """Where contestants live: the Python of the peers, a checkout of fastDP, a folder for files."""

    folder: Path
    peer_python: str = sys.executable
    fastdp: Path | None = None
    time_limit: float = 900.0

    def ask(self, job: Job) -> Answer:
        """Run a job in a process of its own; one outcome for each of its settings."""
        with self.seat(job) as seat:
            return seat.turn(self.time_limit)

    def seat(self, job: Job) -> Seat:
        """A process for a job, which waits for its turns."""
        entry = CONTESTANTS[job.contestant]
        python = self.peer_python if entry.peer else sys.executable
        given = variables(entry, job.threads, job.tuned) | self._for_peers()
        return Seat(job, self.folder, python, given)

    def _for_peers(self) -> dict[str, str]:
        return {
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": str(self.folder / "jax-cache"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            _FASTDP: str(self.fastdp or ""),
        }


class Seat:
    """A contestant's process: it does the job anew whenever it has a turn, and sleeps meanwhile."""

    def __init__(self, job: Job, folder: Path, python: str, variables: dict[str, str]) -> None:
        self._job = job
        self._own = tempfile.TemporaryDirectory(dir=folder)
        question, self._answer, self._errors = (
            Path(self._own.name) / name for name in ("job.json", "answer.json", "errors.txt")
        )
        job.write(question)
        command = [python, "-W", "ignore", "-m", "clipping_suite.worker"]
        with self._errors.open("wb") as stderr:
            self._process = subprocess.Popen(
                [*command, str(question), str(self._answer)],
                env=variables,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
            )

    def __enter__(self) -> Seat:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def turn(self, limit: float) -> Answer:
        """One outcome for each setting of the job; the process must answer within the limit."""
        ended = self._wait(limit)
        found = Answer.read(self._answer) if self._answer.exists() else Answer([])
        self._answer.unlink(missing_ok=True)
        for setting in self._job.settings[len(found.outcomes) :]:
            found.outcomes.append(Outcome(setting, *(ended or (job_module.FAILED, "no answer"))))
        return found

    def leave(self) -> None:
        """End the process, and what it started."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()
        self._own.cleanup()

    def _wait(self, limit: float) -> tuple[str, str] | None:
        """None if the turn was taken, otherwise a status and the reason."""
        asked, said = self._process.stdin, self._process.stdout
        assert asked is not None and said is not None
        with suppress(BrokenPipeError):  # then the process has ended, which is told below
            asked.write(b"\n")
            asked.flush()
        if not select.select([said], [], [], limit)[0]:
            return job_module.NO_ANSWER, f"stopped after {limit:.0f} s"
        if os.read(said.fileno(), 1):
            return None
        code = self._process.wait()
        if code < 0:
            return job_module.FAILED, f"killed by {signal.Signals(-code).name}"
        lines = self._errors.read_text("utf-8", "replace").strip().splitlines()
        return job_module.FAILED, lines[-1][:160] if lines else f"exit code {code}"


def variables(entry: Entry, threads: int, tuned: bool) -> dict[str, str]:
    """The environment of a contestant's process: modules, native or not, threads, the allocator."""
    paths = [str(_SUITE)] if entry.peer else [str(_SUITE), str(_SUITE.parent)]
    inherited = {k: v for k, v in os.environ.items() if k != "TACIT_NATIVE"}
    own = {"PYTHONPATH": os.pathsep.join(paths)} | thread_variables(threads)
    own |= allocator_variables() if tuned else {}
    return inherited | own | ({} if entry.native else {"TACIT_NATIVE": "0"})
