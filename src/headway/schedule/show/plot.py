"""Two figures of every policy against each other, as SVG drawn here."""

from __future__ import annotations

from dataclasses import dataclass

from headway.schedule.simulate.compare import Comparison

PLOT_WIDTH, PLOT_HEIGHT = 460.0, 300.0
LEFT, RIGHT, TOP, BOTTOM = 62.0, 110.0, 16.0, 44.0


@dataclass(frozen=True, slots=True)
class Mark:
    """A policy in the plot, with its confidence intervals."""

    name: str
    x: float
    y: float
    across: float
    up: float
    best: bool


@dataclass(frozen=True, slots=True)
class Plot:
    """All that the template draws."""

    title: str
    across: str
    up: str
    marks: tuple[Mark, ...]
    line: str  # through the front
    ticks_x: tuple[tuple[float, str], ...]
    ticks_y: tuple[tuple[float, str], ...]


def make_plot(compared: Comparison, title: str, x: tuple[str, str], y: tuple[str, str]) -> Plot:
    """`x` and `y` are a figure and its name; the front is the one of these two."""
    places = range(len(compared.names))
    across = [compared.of(place, x[0]) for place in places]
    up = [compared.of(place, y[0]) for place in places]
    most_x = max(one.mean + (one.half or 0.0) for one in across) or 1.0
    most_y = max(one.mean + (one.half or 0.0) for one in up) or 1.0
    wide, high = (PLOT_WIDTH - LEFT - RIGHT) / most_x, (PLOT_HEIGHT - TOP - BOTTOM) / most_y
    front = compared.front(x[0], y[0])
    marks = tuple(
        Mark(
            name=compared.names[place],
            x=LEFT + across[place].mean * wide,
            y=PLOT_HEIGHT - BOTTOM - up[place].mean * high,
            across=(across[place].half or 0.0) * wide,
            up=(up[place].half or 0.0) * high,
            best=place in front,
        )
        for place in places
    )
    best = sorted((mark.x, mark.y) for mark in marks if mark.best)
    return Plot(
        title=title,
        across=x[1],
        up=y[1],
        marks=marks,
        line=" ".join(f"{px:.1f},{py:.1f}" for px, py in best),
        ticks_x=tuple((LEFT + value * wide, f"{value:,g}") for value in axis_ticks(most_x)),
        ticks_y=tuple(
            (PLOT_HEIGHT - BOTTOM - value * high, f"{value:,g}") for value in axis_ticks(most_y)
        ),
    )


def axis_ticks(most: float) -> list[float]:
    """From 0 up to it, in steps of 1, 2 or 5 and zeros: four to eight of them."""
    step = 1e-9
    while most / step > 8:
        for factor in (2.0, 2.5, 2.0):
            step *= factor
            if most / step <= 8:
                break
    return [round(step * number, 9) for number in range(int(most / step + 1e-9) + 1)]
