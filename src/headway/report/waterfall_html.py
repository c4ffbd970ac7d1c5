"""A waterfall as one HTML file: no network, no script."""

from __future__ import annotations

from typing import Any

from headway import __version__
from headway.report.html import environment
from headway.report.waterfall import Bar, Side, Waterfall, shade
from headway.report.waterfall_terminal import LEAST, TITLES, difference, value, whole
from headway.report.words import colour, count, one_line, short


def page(waterfall: Waterfall) -> str:
    """The whole page; names of runs are escaped."""
    sides: tuple[Side, ...] = ("start", "lost")
    return (
        environment()
        .get_template("waterfall.html")
        .render(
            version=__version__,
            bars=[one_line(bar.name, 100) for bar in waterfall.bars],
            charts=[_chart(waterfall, side) for side in sides],
        )
    )


def _chart(waterfall: Waterfall, side: Side) -> dict[str, Any]:
    leaves = waterfall.leaves(side)
    longest = max(bar.total(side) for bar in waterfall.bars) or 1.0
    return {
        "title": TITLES[side],
        "bars": [_bar(bar, side, leaves, longest) for bar in waterfall.bars],
        "leaves": [
            {
                "name": short(leaf) if side == "start" else leaf,
                "colour": _colour(leaf),
                "cells": [value(bar.parts(side).get(leaf, 0.0), side) for bar in waterfall.bars],
            }
            for leaf in leaves
        ],
        "steps": [
            {
                "name": f"{one_line(step.before, 60)} → {one_line(step.after, 60)}",
                "total": difference(step.total(side), side),
                "fell": step.total(side) < 0,
                "changes": [
                    {
                        "name": short(leaf) if side == "start" else leaf,
                        "text": difference(change, side),
                        "fell": change < 0,
                    }
                    for leaf, change in step.parts(side).items()
                    if abs(change) >= LEAST[side]
                ],
            }
            for step in waterfall.steps
        ],
    }


def _bar(bar: Bar, side: Side, leaves: list[str], longest: float) -> dict[str, Any]:
    parts = bar.parts(side)
    return {
        "name": one_line(bar.name, 100),
        "runs": count(bar.runs, "run"),
        "total": whole(bar, side),
        "parts": [
            {
                "width": 100 * parts[leaf] / longest,
                "colour": _colour(leaf),
                "text": f"{leaf}: {value(parts[leaf], side)}",
            }
            for leaf in leaves
            if leaf in parts
        ],
    }


def _colour(leaf: str) -> str:
    return colour(shade(leaf), dark=False)
