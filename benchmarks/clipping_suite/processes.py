"""Starts a contestant's process, waits for it within a time limit, and reads its answer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
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
        with tempfile.TemporaryDirectory(dir=self.folder) as own:
            question, answer = Path(own) / "job.json", Path(own) / "answer.json"
            job.write(question)
            ended = self._run(job, question, answer, Path(own) / "errors.txt")
            found = Answer.read(answer) if answer.exists() else Answer([])
        for setting in job.settings[len(found.outcomes) :]:
            found.outcomes.append(Outcome(setting, *(ended or (job_module.FAILED, "no answer"))))
        return found

    def _run(self, job: Job, question: Path, answer: Path, errors: Path) -> tuple[str, str] | None:
        """None if the process ended well, otherwise a status and the reason."""
        entry = CONTESTANTS[job.contestant]
        python = self.peer_python if entry.peer else sys.executable
        command = [python, "-W", "ignore", "-m", "clipping_suite.worker"]
        with errors.open("wb") as stderr:
            process = subprocess.Popen(
                [*command, str(question), str(answer)],
                env=variables(entry, job.threads, job.tuned) | self._for_peers(),
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
            )
            try:
                code = process.wait(self.time_limit)
            except subprocess.TimeoutExpired:
                return job_module.NO_ANSWER, f"stopped after {self.time_limit:.0f} s"
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        if code == 0:
            return None
        if code < 0:
            return job_module.FAILED, f"killed by {signal.Signals(-code).name}"
        lines = errors.read_text("utf-8", "replace").strip().splitlines()
        return job_module.FAILED, lines[-1][:160] if lines else f"exit code {code}"

    def _for_peers(self) -> dict[str, str]:
        return {
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": str(self.folder / "jax-cache"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            _FASTDP: str(self.fastdp or ""),
        }


def variables(entry: Entry, threads: int, tuned: bool) -> dict[str, str]:
    """The environment of a contestant's process: modules, native or not, threads, the allocator."""
    paths = [str(_SUITE)] if entry.peer else [str(_SUITE), str(_SUITE.parent)]
    inherited = {k: v for k, v in os.environ.items() if k != "TACIT_NATIVE"}
    own = {"PYTHONPATH": os.pathsep.join(paths)} | thread_variables(threads)
    own |= allocator_variables() if tuned else {}
    return inherited | own | ({} if entry.native else {"TACIT_NATIVE": "0"})
