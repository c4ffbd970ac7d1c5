"""What rules may be about: figures out of the answers of `headway fleet`."""

from __future__ import annotations

from typing import NamedTuple

from headway.units import format_duration


class AlertMetric(NamedTuple):
    """Which question has it, in which column; a time is told in seconds, a share in percent."""

    question: str
    column: str
    unit: str
    words: str

    def text(self, value: float) -> str:
        """A value as a person reads it."""
        if self.unit == "s":
            return format_duration(round(value, 1))
        return f"{value:.1f} %" if self.unit == "%" else f"{value:,g}"


ALERT_METRICS = {
    "ett": AlertMetric("ett", "ett_percent", "%", "ETT"),
    "ett_by_jobs": AlertMetric("ett", "ett_percent_by_jobs", "%", "ETT by jobs"),
    "idleness": AlertMetric("ett", "idleness_percent", "%", "idleness"),
    "failure": AlertMetric("ett", "failure_percent", "%", "failure"),
    "jobs": AlertMetric("ett", "jobs", "", "jobs"),
    "accelerator_hours": AlertMetric("ett", "accelerator_hours", "", "accelerator-hours"),
    "tts": AlertMetric("tts", "tts_s", "s", "mean TTS"),
    "tts_p50": AlertMetric("tts", "tts_p50_s", "s", "TTS p50"),
    "tts_p90": AlertMetric("tts", "tts_p90_s", "s", "TTS p90"),
    "never_trained": AlertMetric("tts", "never_trained", "", "runs that never trained"),
    "ttr": AlertMetric("ttr", "ttr_s", "s", "mean TTR"),
    "ttr_p50": AlertMetric("ttr", "ttr_p50_s", "s", "TTR p50"),
    "ttr_p90": AlertMetric("ttr", "ttr_p90_s", "s", "TTR p90"),
    "interruptions": AlertMetric("ttr", "interruptions", "", "interruptions"),
    "failures": AlertMetric("failures", "failures", "", "failures of infra"),
    "failures_user": AlertMetric("failures", "failures_user", "", "failures of users"),
    "failures_scheduler": AlertMetric(
        "failures", "failures_scheduler", "", "failures of the scheduler"
    ),
    "failures_ambiguous": AlertMetric("failures", "failures_ambiguous", "", "ambiguous failures"),
    "checkpoint_blocked": AlertMetric("checkpoints", "blocked_s", "s", "blocking of a save"),
    "checkpoint_blocked_p90": AlertMetric(
        "checkpoints", "blocked_p90_s", "s", "blocking of saves p90"
    ),
    "checkpoints_failed": AlertMetric("checkpoints", "failed", "", "saves that failed"),
    "recompiles": AlertMetric("compile", "recompiles", "", "recompiles"),
}
