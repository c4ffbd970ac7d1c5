"""Notices that a job makes no step any more, and finds out where it stands."""

from headway.launch.hang.limits import FLOOR_S, StepTimingStats
from headway.launch.hang.notice import Hang, HangDetector

__all__ = ["FLOOR_S", "Hang", "HangDetector", "StepTimingStats"]
