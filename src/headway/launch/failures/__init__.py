"""Why a training job failed: from logs, exit codes, signals, kernel and scheduler facts."""

from headway.launch.failures.reader import read_log
from headway.launch.failures.recurrence import recurrence
from headway.launch.failures.rules import classify
from headway.launch.failures.verdict import Fact, Other, Verdict

__all__ = ["Fact", "Other", "Verdict", "classify", "read_log", "recurrence"]
