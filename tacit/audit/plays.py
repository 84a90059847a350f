"""Games as tasks: played in parallel, watched, and kept on disk so that none is played twice."""

from __future__ import annotations

import hashlib
import io
import json
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np

from tacit.audit.protocol import Game, Played, Progress
from tacit.audit.scores import Scores
from tacit.errors import RunError
from tacit.privacy import events
from tacit.privacy.relations import Relation
from tacit.progress import Moment, Watcher
from tacit.rundir import RunDir

_OFTEN = 0.5  # seconds between two reports of progress


@dataclass(frozen=True)
class Play:
    """One run of a game, with the file that holds what came of it."""

    game: Game
    seed: int
    cache: Path

    @property
    def name(self) -> str:
        return f"{self.game.name} {self.seed}"

    @property
    def kind(self) -> str:
        return self.game.name

    @property
    def path(self) -> Path:
        """Named after everything that decides the outcome."""
        decided = f"{version('tacit')} {self.game.digest()} {self.seed}"
        named = hashlib.sha256(decided.encode()).hexdigest()[:20]
        return self.cache / f"{self.game.name.replace(' ', '-')}-{self.seed}-{named}.npz"

    @property
    def finished(self) -> bool:
        return self.path.is_file()

    def do(self, data_dir: Path | None, watcher: Watcher) -> None:
        """Play, and keep the outcome."""
        keep(self.path, self.game.play(self.seed, paced(watcher)))

    def outcome(self) -> Played:
        """What `do` kept."""
        return kept(self.path)


def paced(watcher: Watcher) -> Progress:
    """Progress in steps, passed on to a watcher now and then."""
    begun = last = time.monotonic()

    def progress(done: int, of: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _OFTEN or done == of:
            last = now
            watcher.show(Moment.bare(done, of, (now - begun) * (of - done) / max(done, 1)))

    return progress


def keep(path: Path, played: Played) -> None:
    """Write an outcome, whole or not at all."""
    facts = {
        "event": events.to_json(played.event),
        "relation": played.relation.value,
        "independent": played.independent,
        "claimed": played.claimed,
    }
    file = io.BytesIO()
    np.savez_compressed(
        file, values=played.scores.values, heads=played.scores.heads, facts=json.dumps(facts)
    )
    RunDir(path.parent).write(path, file.getvalue())


def kept(path: Path) -> Played:
    """Read an outcome."""
    try:
        with np.load(path, allow_pickle=False) as file:
            scores = Scores(file["values"].astype(np.float64), file["heads"].astype(np.bool_))
            facts = json.loads(str(file["facts"]))
        event, relation = events.from_json(facts["event"]), Relation(facts["relation"])
    except (OSError, ValueError, KeyError) as error:
        raise RunError(f"{path}: cannot be read ({error}); remove it, it is made again") from error
    return Played(scores, event, relation, bool(facts["independent"]), facts["claimed"])
