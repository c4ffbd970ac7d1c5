"""What a job knows of itself: seconds by leaf, measured by its own clock, written at every change.

Knows nothing of Headway. A file per rank, so that a killed rank leaves what it had measured.
"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Truth:
    def __init__(self, rank: int = 0, attempt: int = 0) -> None:
        self.file = Path(os.environ["TRUTH"]) / f"{attempt}-{rank}.json"
        self.seconds: dict[str, float] = {}
        self.marks: dict[str, float] = {}

    @contextmanager
    def timed(self, leaf: str) -> Iterator[None]:
        start = time.monotonic()
        yield
        self.add(leaf, time.monotonic() - start)

    def add(self, leaf: str, seconds: float) -> None:
        self.seconds[leaf] = self.seconds.get(leaf, 0.0) + seconds
        self.write()

    def mark(self, name: str) -> None:
        self.marks[name] = time.monotonic()
        self.write()

    def write(self) -> None:
        aside = self.file.with_suffix(".tmp")
        aside.write_text(json.dumps({"seconds": self.seconds, "marks": self.marks}))
        os.replace(aside, self.file)
