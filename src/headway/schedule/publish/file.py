"""A file that anything can read: JSON, or a textfile of Prometheus by its ending."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from headway.errors import SchedulerUpdateFailed
from headway.schedule.publish.offer import RunCost

TEXTFILE = ".prom"


class FilePublisher:
    """All runs in one file, which is replaced as a whole; `page` writes it for Prometheus."""

    def __init__(
        self, path: Path, page: Callable[[Sequence[RunCost]], str], *, dry: bool = False
    ) -> None:
        self.path, self.page, self.dry = path, page, dry

    def tell(self, offers: list[RunCost]) -> list[str]:
        """Write what there is now: a run that is over has no price in it."""
        going = [one for one in offers if one.price is not None]
        text = self.page(going) if self.path.suffix == TEXTFILE else _to_json(offers)
        if self.dry:
            return [f"would write {self.path}: {' '.join(text.split())}"]
        aside = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            aside.write_text(text)
            os.replace(aside, self.path)
        except OSError as error:
            with contextlib.suppress(OSError):
                aside.unlink()
            raise SchedulerUpdateFailed(
                f"cannot write {self.path}: {error.strerror}", code="file-unwritable"
            ) from None
        return []


def _to_json(offers: Sequence[RunCost]) -> str:
    told = [asdict(one) for one in offers]
    return json.dumps({"schema": 1, "runs": told}, indent=1) + "\n"
