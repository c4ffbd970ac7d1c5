"""Faults on purpose: planned in a file, the same every time, noted in the journal."""

from headway.launch.chaos.inject import Injector
from headway.launch.chaos.inline import parse_inline
from headway.launch.chaos.plan import Fault, Plan, parse

__all__ = ["Fault", "Injector", "Plan", "parse", "parse_inline"]
