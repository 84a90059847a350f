"""Train several recipes, one after another or several at once; interrupted, it goes on."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Protocol

from tacit.board import Board, SilentBoard
from tacit.config import Recipe
from tacit.errors import RunError, TacitError
from tacit.method_sections import PlainRecipe
from tacit.progress import Moment, NothingToClose, Watcher
from tacit.rundir import RunDir


class Task(Protocol):
    """Something that takes long, can be watched, and leaves a file when it is finished."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> str:
        """Tasks of one kind take about as long as each other."""
        ...

    @property
    def finished(self) -> bool: ...

    def do(self, data_dir: Path | None, watcher: Watcher) -> None:
        """All of it, or the rest where it was interrupted."""
        ...


@dataclass(frozen=True)
class Training:
    """A run that is wanted: its recipe, where it goes, and what it is called meanwhile."""

    name: str
    kind: str
    recipe: Recipe
    out: Path

    @property
    def finished(self) -> bool:
        """Whether weights, report and certificate are there and the key is gone."""
        run = RunDir(self.out)
        parts = [run.ledger, self.out / "report.html"]
        if not isinstance(self.recipe.method, PlainRecipe):
            parts += [run.certificate, run.certificate_text]
        return run.finished and all(part.is_file() for part in parts)

    def do(self, data_dir: Path | None, watcher: Watcher) -> None:
        """Train, or go on where the run was interrupted."""
        from tacit.train import stored_recipe, train

        resume = RunDir(self.out).ledger.exists()
        recipe = stored_recipe(self.out) if resume else self.recipe
        train(recipe, data_dir=data_dir, out=self.out, resume=resume, watcher=watcher)


def train_all(
    trainings: Sequence[Task],
    *,
    jobs: int = 1,
    data_dir: Path | None = None,
    board: Board | None = None,
) -> None:
    """Train what is not finished; continue what was interrupted; leave the rest as it is.

    With one job the trainings run in this process, with all its threads; with more, each in a
    process of its own with one thread, which ends when this process does. A training that fails
    does not keep the others from running; the error comes at the end and names those that failed.
    """
    missing = [training for training in trainings if not training.finished]
    watching = board or SilentBoard()
    with watching:
        kinds = {training.name: training.kind for training in missing}
        watching.expect(kinds, len(trainings) - len(missing), jobs)
        if jobs == 1:
            failures = _one_by_one(missing, data_dir, watching)
        else:
            failures = _at_once(missing, jobs, data_dir, watching)
    if failures:
        said = "\n  ".join(f"{name}: {reason}" for name, reason in failures.items())
        raise RunError(
            f"{len(failures)} of {len(missing)} trainings failed; mend the cause and give the same"
            f" command again, finished runs are kept:\n  {said}"
        )


class _Watcher(NothingToClose):
    """Passes the moments of one training on to a board."""

    def __init__(self, name: str, board: Board) -> None:
        self._name, self._board = name, board

    def show(self, moment: Moment) -> None:
        self._board.show(self._name, moment)


class _Sender(_Watcher):
    """Sends the moments of one training to the process that started it.

    Once that process is gone, sending fails and so ends the training, which can be resumed.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def show(self, moment: Moment) -> None:
        self._connection.send(moment)


def _one_by_one(trainings: Sequence[Task], data_dir: Path | None, board: Board) -> dict[str, str]:
    failures = {}
    for training in trainings:
        board.started(training.name)
        try:
            training.do(data_dir, _Watcher(training.name, board))
        except TacitError as error:
            failures[training.name] = str(error)
        board.ended(training.name, failures.get(training.name, ""))
    return failures


def _at_once(
    trainings: Sequence[Task], jobs: int, data_dir: Path | None, board: Board
) -> dict[str, str]:
    waiting, failures = list(trainings), {}
    with _children() as running:
        while waiting or running:
            while waiting and len(running) < jobs:
                training = waiting.pop(0)
                connection, process = _start(training, data_dir)
                running[connection] = training.name, process
                board.started(training.name)
            ready = wait(list(running))
            for connection in [one for one in running if one in ready]:
                name, process = running[connection]
                message = _received(connection)
                if isinstance(message, Moment):
                    board.show(name, message)
                    continue
                process.join()
                connection.close()
                del running[connection]
                if message is None and process.exitcode:
                    message = f"its process ended with exit code {process.exitcode}"
                if message:
                    failures[name] = message
                board.ended(name, message or "")
    return failures


@contextmanager
def _children() -> Iterator[dict[Connection, tuple[str, BaseProcess]]]:
    """Processes by their connection; those that still run at the end are stopped."""
    running: dict[Connection, tuple[str, BaseProcess]] = {}
    try:
        yield running
    finally:
        for _, process in running.values():
            process.terminate()
        for _, process in running.values():
            process.join()


def _start(training: Task, data_dir: Path | None) -> tuple[Connection, BaseProcess]:
    context = multiprocessing.get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(training, data_dir, sending), daemon=True)
    process.start()
    sending.close()
    return receiving, process


def _received(connection: Connection) -> Moment | str | None:
    try:
        message: Moment | str = connection.recv()
    except EOFError:
        return None
    return message


def _child(training: Task, data_dir: Path | None, connection: Connection) -> None:
    import torch

    from tacit.process_tuning import tune_process

    tune_process()
    torch.set_num_threads(1)
    try:
        training.do(data_dir, _Sender(connection))
    except TacitError as error:
        connection.send(str(error))
    except (BrokenPipeError, KeyboardInterrupt):
        raise SystemExit(1) from None
