"""The stages of a start as a graph: what does not wait for each other runs side by side."""

from headway.startup.stages.errors import StageError, StageFailed, StageLate
from headway.startup.stages.graph import Stage
from headway.startup.stages.stages import Results, Stages

__all__ = ["Results", "Stage", "StageError", "StageFailed", "StageLate", "Stages"]
