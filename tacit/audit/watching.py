"""Between a training's watcher and a game's count of steps."""

from __future__ import annotations

from tacit.audit.protocol import Progress
from tacit.progress import Moment, NothingToClose


class Passed(NothingToClose):
    """Passes the steps of a training on."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def show(self, moment: Moment) -> None:
        self._progress(moment.step, moment.steps)
