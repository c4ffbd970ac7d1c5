"""The words, durations and colours that every report shares."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping
from typing import Final

from headway import redact
from headway.ledger.leaves import START_STAGES, UNKNOWN
from headway.ledger.model import NS

GROUPS: Final = ("start", "train", "waste", "failure", "recover", "stop", "unknown")

_STAGE_MEANING: Final = {
    "scheduling": "waiting for the scheduler",
    "hardware_setup": "setting up the machine",
    "launcher_init": "launcher, Python and imports",
    "device_init": "waking the device",
    "process_group_init": "connecting the ranks",
    "preproc_creation": "building the data pipeline",
    "train_module_creation": "building the model",
    "init_plugins": "starting plugins",
    "pre_train": "last work before the loop",
    "get_first_batch_data": "waiting for the first batch",
    "checkpoint_load": "loading the checkpoint",
    "pt2_compile": "the compiler: import, compiles",
}
# One line each, at most 32 characters: they stand beside the bars in a terminal.
MEANING: Final = {
    **{f"start.{name}": text for name, text in _STAGE_MEANING.items()},
    **{f"recover.{name}": text for name, text in _STAGE_MEANING.items()},
    "train.effective": "training on new data",
    "waste.checkpoint_block": "training stopped for a save",
    "waste.data_stall": "waiting for the next batch",
    "waste.recompile": "compiling again",
    "waste.evaluation": "evaluating between steps",
    "waste.blocked": "training held up otherwise",
    "failure.lost_training": "trained, then rolled back",
    "failure.hang": "alive, but no step",
    "recover.detection": "dead, but not yet noticed",
    "recover.downtime": "noticed, but not yet restarted",
    "stop.shutdown": "after the last step",
    "stop.publish": "making the model ready to serve",
    "unknown": "no event says what it was",
}
GROUP_MEANING: Final = {
    "start": "before the first training step",
    "train": "training on new data",
    "waste": "between training steps",
    "failure": "work that was lost",
    "recover": "from a failure to training again",
    "stop": "after the last training step",
    "unknown": "no event says what it was",
}
PART_MEANING: Final = {
    "import": "importing the compiler",
    "cache_load": "loading what was compiled before",
    "dynamo": "reading the Python code",
    "aot_autograd": "making the backward graph",
    "inductor": "making kernels from the graphs",
    "triton": "compiling the kernels",
    "cpp": "compiling kernels for the CPU",
    "autotune": "trying configs of kernels",
    "other": "not told by torch",
}
GROUP_STYLES: Final = {
    "train": "green",
    "start": "blue",
    "waste": "yellow",
    "failure": "red",
    "recover": "magenta",
    "stop": "cyan",
    "unknown": "bright_black",
}


def stage_of(leaf: str) -> str:
    """A leaf without its group: `start.pt2_compile` is `pt2_compile`."""
    return leaf.rpartition(".")[2]


def truncate_left(text: str, width: int) -> str:
    """The last `width` characters: of a path the end says most."""
    clean = one_line(text, 10_000)
    return clean if len(clean) <= width else f"...{clean[3 - width :]}"


def duration(ns: int) -> str:
    """Two units at most, so that a column of them reads at a glance: `4 m 02 s`."""
    if ns < 0:
        return f"-{duration(-ns)}"
    if ns == 0:
        return "0 s"
    if ns < 999_500_000:
        return f"{ns / 1e6:.0f} ms" if ns >= 9_950_000 else f"{ns / 1e6:.1f} ms"
    if ns < 59_950_000_000:
        return f"{ns / NS:.1f} s"
    seconds = round(ns / NS)
    if seconds < 3600:
        return f"{seconds // 60} m {seconds % 60:02d} s"
    minutes = round(seconds / 60)
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} m"
    hours = round(minutes / 60)
    return f"{hours // 24} d {hours % 24:02d} h"


def percent(value: float) -> str:
    """One decimal, and never `0.0 %` or `100.0 %` for what is not quite that."""
    if 0 < value < 0.05:
        return "<0.1 %"
    if 99.95 <= value < 100:
        return "99.9 %"
    return f"{value:.1f} %"


def count(number: int, noun: str) -> str:
    """`1 rank`, `2 ranks`, `3,400 steps`."""
    if number == 1:
        return f"1 {noun}"
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {plural}"


def count_failures(by_owner: Mapping[str, int]) -> str:
    """`1 infra, 2 user failures`: the number of failures is that of `infra`."""
    known = {owner: number for owner, number in by_owner.items() if number}
    if not known:
        return "no failure"
    parts = ", ".join(f"{number:,} {owner}" for owner, number in known.items())
    return f"{parts} {'failure' if sum(known.values()) == 1 else 'failures'}"


def one_line(text: str, limit: int | None = None) -> str:
    """Text from a job, safe to show: one line, no secrets, no control characters."""
    text = redact.text(_ESCAPES.sub("", text))
    clean = " ".join(printable(text).split())
    if limit is not None and len(clean) > limit:
        return clean[: max(limit - 3, 0)] + "..."
    return clean


def printable(text: str) -> str:
    """As long as it was, with a space for each character that could steer a terminal."""
    return "".join(" " if unicodedata.category(c)[0] in "CZ" else c for c in text)


# What colors text, moves the cursor or sets the title of a terminal.
_ESCAPES: Final = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])"
    r"|\x9b[0-?]*[ -/]*[@-~]"
)


def bucket_color(leaf: str, *, dark: bool) -> str:
    """The colour of a leaf as `#rrggbb`: one family of hues per group, one shade per leaf."""
    lightness, chroma, hue = OKLCH[leaf]
    return _oklch_to_hex(lightness + (0.05 if dark else 0.0), chroma * (0.92 if dark else 1.0), hue)


def _oklch_to_hex(lightness: float, chroma: float, hue: float) -> str:
    """Equal lightness looks equally light in every hue, which HSL cannot promise."""
    a, b = chroma * math.cos(math.radians(hue)), chroma * math.sin(math.radians(hue))
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    small = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    linear = (
        4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * small,
        -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * small,
        -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * small,
    )
    return "#" + "".join(f"{round(255 * _gamma(x)):02x}" for x in linear)


def _gamma(x: float) -> float:
    x = min(max(x, 0.0), 1.0)
    return 12.92 * x if x <= 0.0031308 else 1.055 * x ** (1 / 2.4) - 0.055


def _oklch_by_bucket() -> dict[str, tuple[float, float, float]]:
    """Lightness, chroma and hue in OKLCH."""
    shades = {
        "train.effective": (0.66, 0.13, 164.0),
        "waste.checkpoint_block": (0.77, 0.155, 72.0),
        "waste.data_stall": (0.85, 0.16, 92.0),
        "waste.recompile": (0.70, 0.165, 52.0),
        "waste.evaluation": (0.90, 0.11, 104.0),
        "waste.blocked": (0.66, 0.10, 75.0),
        "failure.lost_training": (0.62, 0.20, 25.0),
        "failure.hang": (0.48, 0.17, 20.0),
        "recover.detection": (0.52, 0.19, 355.0),
        "recover.downtime": (0.66, 0.19, 358.0),
        "stop.shutdown": (0.60, 0.05, 210.0),
        "stop.publish": (0.74, 0.06, 200.0),
        UNKNOWN: (0.72, 0.01, 260.0),
    }
    for place, stage in enumerate(START_STAGES):
        # Neighbours differ in lightness too: hue alone is not enough for every eye.
        lift = (0.0, 0.14, 0.07)[place % 3]
        shades[f"start.{stage}"] = (0.54 + lift, 0.145, 232.0 + 4.0 * place)
        shades[f"recover.{stage}"] = (0.58 + lift, 0.15, 345.0 - 4.0 * place)
    return shades


OKLCH: Final = _oklch_by_bucket()
