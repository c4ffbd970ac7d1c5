"""A waterfall as one HTML file: no network, no script."""

from __future__ import annotations

from typing import Any

from headway import __version__
from headway.report.html import template_environment
from headway.report.waterfall import Bar, Side, Waterfall, color_source
from headway.report.waterfall_terminal import (
    MIN_CHANGE,
    TITLES,
    format_amount,
    format_change,
    format_total,
)
from headway.report.words import bucket_color, count, one_line, stage_of


def waterfall_page(waterfall: Waterfall) -> str:
    """The whole page; names of runs are escaped."""
    sides: tuple[Side, ...] = ("start", "lost")
    return (
        template_environment()
        .get_template("waterfall.html")
        .render(
            version=__version__,
            bars=[one_line(bar.name, 100) for bar in waterfall.bars],
            charts=[_html_chart(waterfall, side) for side in sides],
        )
    )


def _html_chart(waterfall: Waterfall, side: Side) -> dict[str, Any]:
    leaves = waterfall.leaves(side)
    longest = max(bar.total(side) for bar in waterfall.bars) or 1.0
    return {
        "title": TITLES[side],
        "bars": [_html_bar(bar, side, leaves, longest) for bar in waterfall.bars],
        "leaves": [
            {
                "name": stage_of(leaf) if side == "start" else leaf,
                "colour": _html_color(leaf),
                "cells": [
                    format_amount(bar.parts(side).get(leaf, 0.0), side) for bar in waterfall.bars
                ],
            }
            for leaf in leaves
        ],
        "steps": [
            {
                "name": f"{one_line(step.before, 60)} → {one_line(step.after, 60)}",
                "total": format_change(step.total(side), side),
                "fell": step.total(side) < 0,
                "changes": [
                    {
                        "name": stage_of(leaf) if side == "start" else leaf,
                        "text": format_change(change, side),
                        "fell": change < 0,
                    }
                    for leaf, change in step.parts(side).items()
                    if abs(change) >= MIN_CHANGE[side]
                ],
            }
            for step in waterfall.steps
        ],
    }


def _html_bar(bar: Bar, side: Side, leaves: list[str], longest: float) -> dict[str, Any]:
    parts = bar.parts(side)
    return {
        "name": one_line(bar.name, 100),
        "runs": count(bar.runs, "run"),
        "total": format_total(bar, side),
        "parts": [
            {
                "width": 100 * parts[leaf] / longest,
                "colour": _html_color(leaf),
                "text": f"{leaf}: {format_amount(parts[leaf], side)}",
            }
            for leaf in leaves
            if leaf in parts
        ],
    }


def _html_color(leaf: str) -> str:
    return bucket_color(color_source(leaf), dark=False)
