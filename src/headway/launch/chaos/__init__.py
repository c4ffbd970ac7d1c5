"""Faults on purpose: planned in a file, the same every time, noted in the journal."""

from headway.launch.chaos.inject import FaultInjector
from headway.launch.chaos.inline import parse_inline_plan
from headway.launch.chaos.plan import Fault, FaultPlan, parse_plan

__all__ = ["Fault", "FaultInjector", "FaultPlan", "parse_inline_plan", "parse_plan"]
