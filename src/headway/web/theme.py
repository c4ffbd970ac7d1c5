"""The bucket colors as CSS variables, for the light and the dark theme."""

from __future__ import annotations

import math
from typing import Final

from headway.ledger.buckets import BUCKETS, OKLCH


def bucket_color(bucket: str, *, dark: bool) -> str:
    """Return the color of a leaf as `#rrggbb`: a family of hues per group, a shade per leaf."""
    lightness, chroma, hue = OKLCH[bucket]
    return _oklch_to_hex(lightness + (0.05 if dark else 0.0), chroma * (0.92 if dark else 1.0), hue)


def _oklch_to_hex(lightness: float, chroma: float, hue: float) -> str:
    """Convert OKLCH, where equal lightness looks equal in every hue, unlike in HSL."""
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


SAVE_BUCKET: Final = "waste.checkpoint_block"


def numbered_palette() -> str:
    def variables(dark: bool) -> str:
        colors = "".join(
            f"--l{i}:{bucket_color(bucket, dark=dark)};" for i, bucket in enumerate(BUCKETS)
        )
        return f"{colors}--save:{bucket_color(SAVE_BUCKET, dark=dark)};"

    light, dark = variables(dark=False), variables(dark=True)
    return (
        f":root{{{light}}}"
        f"@media(prefers-color-scheme:dark){{:root:not([data-theme=light]){{{dark}}}}}"
        f":root[data-theme=dark]{{{dark}}}"
    )


def named_palette() -> str:
    """Return a variable per leaf, such as `--start-pt2_compile`, for both themes."""

    def variables(dark: bool) -> str:
        return "".join(
            f"--{bucket.replace('.', '-')}:{bucket_color(bucket, dark=dark)};" for bucket in BUCKETS
        )

    light, dark = variables(dark=False), variables(dark=True)
    return (
        f":root{{{light}}}"
        f"@media(prefers-color-scheme:dark){{:root:not([data-theme=light]){{{dark}}}}}"
        f":root[data-theme=dark]{{{dark}}}"
    )
