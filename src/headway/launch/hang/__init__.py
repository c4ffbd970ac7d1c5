"""Notices that a job makes no step any more, and finds out where it stands."""

from headway.launch.hang.limits import FLOOR_S, Learned
from headway.launch.hang.notice import Hang, HangWatch

__all__ = ["FLOOR_S", "Hang", "HangWatch", "Learned"]
