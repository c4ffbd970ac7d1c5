"""What can go wrong in a start.

StageError              the stages cannot be run as they are declared
  StageFailed           one of them raised; its own exception is the cause
  StageLate             one of them was not done by its deadline
"""

from __future__ import annotations

from headway.errors import HeadwayError


class StageError(HeadwayError):
    """The stages cannot be run as they are declared."""


class StageFailed(StageError):
    """A stage raised."""

    code = "stage-failed"

    def __init__(self, stage: str, text: str, *, code: str | None = None) -> None:
        super().__init__(f"the stage {stage} failed: {text}", code=code)
        self.stage = stage


class StageLate(StageError):
    """A stage was not done in time."""

    code = "stage-late"

    def __init__(self, stage: str, deadline: float) -> None:
        super().__init__(f"the stage {stage} was not done in {deadline:g} s")
        self.stage = stage
