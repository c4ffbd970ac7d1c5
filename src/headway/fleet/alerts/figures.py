"""What rules may be about: figures out of the answers of `headway fleet`."""

from __future__ import annotations

from typing import NamedTuple

from headway.units import duration


class Figure(NamedTuple):
    """Which question has it, in which column; a time is told in seconds, a share in percent."""

    question: str
    column: str
    unit: str
    words: str

    def text(self, value: float) -> str:
        """A value as a person reads it."""
        if self.unit == "s":
            return duration(round(value, 1))
        return f"{value:.1f} %" if self.unit == "%" else f"{value:,g}"


FIGURES = {
    "ett": Figure("ett", "ett_percent", "%", "ETT"),
    "ett_by_jobs": Figure("ett", "ett_percent_by_jobs", "%", "ETT by jobs"),
    "idleness": Figure("ett", "idleness_percent", "%", "idleness"),
    "failure": Figure("ett", "failure_percent", "%", "failure"),
    "jobs": Figure("ett", "jobs", "", "jobs"),
    "accelerator_hours": Figure("ett", "accelerator_hours", "", "accelerator-hours"),
    "tts": Figure("tts", "tts_s", "s", "mean TTS"),
    "tts_p50": Figure("tts", "tts_p50_s", "s", "TTS p50"),
    "tts_p90": Figure("tts", "tts_p90_s", "s", "TTS p90"),
    "never_trained": Figure("tts", "never_trained", "", "runs that never trained"),
    "ttr": Figure("ttr", "ttr_s", "s", "mean TTR"),
    "ttr_p50": Figure("ttr", "ttr_p50_s", "s", "TTR p50"),
    "ttr_p90": Figure("ttr", "ttr_p90_s", "s", "TTR p90"),
    "interruptions": Figure("ttr", "interruptions", "", "interruptions"),
    "failures": Figure("failures", "failures", "", "failures of infra"),
    "failures_user": Figure("failures", "failures_user", "", "failures of users"),
    "failures_scheduler": Figure("failures", "failures_scheduler", "", "failures of the scheduler"),
    "failures_ambiguous": Figure("failures", "failures_ambiguous", "", "ambiguous failures"),
    "checkpoint_blocked": Figure("checkpoints", "blocked_s", "s", "blocking of a save"),
    "checkpoint_blocked_p90": Figure("checkpoints", "blocked_p90_s", "s", "blocking of saves p90"),
    "checkpoints_failed": Figure("checkpoints", "failed", "", "saves that failed"),
    "recompiles": Figure("compile", "recompiles", "", "recompiles"),
}
