"""The pages and what stands on them; each panel is asked for by itself, after the first paint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from headway.serve.panels import (
    alerts,
    checkpoints,
    failures,
    overview,
    preemptions,
    recover,
    run,
    runs,
    start,
)
from headway.serve.source import Source
from headway.serve.wanted import PageQuery

PanelQuery = Callable[[Source, PageQuery], dict[str, Any]]


class Panel(NamedTuple):
    """One part of a page; `shape` is the room that is kept for it until its data is there."""

    name: str
    title: str
    note: str
    shape: str  # cards, chart, tall, table
    ask: PanelQuery
    live: bool = False  # what it shows does not follow from the version of the store alone


class Page(NamedTuple):
    """One page; `own` are the parameters that only it has."""

    path: str
    title: str
    lead: str
    panels: tuple[Panel, ...]
    own: tuple[str, ...] = ()


OVERVIEW_PAGE = Page(
    "/",
    "Fleet",
    "How much of the accelerator time trained on new data, and where the rest went.",
    (
        Panel("headline", "Headline", "", "cards", overview.headline),
        Panel(
            "ett",
            "Effective Training Time",
            "Share of accelerator-hours. Marks are change points of single slices.",
            "chart",
            overview.over_time,
        ),
        Panel(
            "lost-by-bucket",
            "Lost accelerator-hours by bucket",
            "All that was not training on new data; the line is the share of the total so far.",
            "chart",
            overview.by_bucket,
        ),
        Panel(
            "lost-by-cause",
            "Lost accelerator-hours by cause of failure",
            "Training that was rolled back, and recovery. A bar opens the runs that it is made of.",
            "chart",
            overview.by_cause,
        ),
    ),
)
START_PAGE = Page(
    "/start",
    "Time to Start",
    "From the allocation of the machines to the first training, of runs that began then.",
    (
        Panel("start-headline", "Headline", "", "cards", start.headline),
        Panel(
            "start-stages",
            "By stage",
            "Mean seconds of a run; runs that never trained are left out.",
            "chart",
            start.stages,
        ),
        Panel(
            "start-releases",
            "Over releases",
            "The same stages for each release, in the order in which they came.",
            "chart",
            start.by_release,
        ),
        Panel(
            "start-time", "Over time", "Half of the runs, nine of ten.", "chart", start.over_time
        ),
    ),
    ("release",),
)
RECOVER_PAGE = Page(
    "/recover",
    "Time to Recover",
    "From the last sign of progress before an interruption to training again.",
    (
        Panel("recover-headline", "Headline", "", "cards", recover.headline),
        Panel(
            "recover-time",
            "Over time",
            "Half of the interruptions, nine of ten.",
            "chart",
            recover.over_time,
        ),
        Panel(
            "recover-stages",
            "By stage",
            "Accelerator-hours from failure to training again.",
            "chart",
            recover.stages,
        ),
        Panel(
            "recover-causes",
            "By cause",
            "How long half of the recoveries took, by what had failed.",
            "chart",
            recover.by_cause,
        ),
    ),
)
CHECKPOINTS_PAGE = Page(
    "/checkpoints",
    "Checkpoints",
    "What saves cost while all goes well, and what was not saved when something failed.",
    (
        Panel("saves-headline", "Headline", "", "cards", checkpoints.headline),
        Panel(
            "saves-blocking",
            "Blocking",
            "Accelerator-hours in which training stood still for a save.",
            "chart",
            checkpoints.blocking,
        ),
        Panel(
            "saves-unsaved",
            "Unsaved training time",
            "Accelerator-hours that were trained, then rolled back to the last checkpoint.",
            "chart",
            checkpoints.unsaved,
        ),
        Panel("saves-levels", "By level", "", "table", checkpoints.levels),
    ),
)
FAILURES_PAGE = Page(
    "/failures",
    "Failures",
    "What failed, on which node it began, and what that cost.",
    (
        Panel(
            "failures-nodes",
            "Nodes and categories",
            "Failures that began on a node. A cell opens the runs that failed there.",
            "tall",
            failures.nodes,
        ),
        Panel("failures-time", "Over time", "Failures by category.", "chart", failures.over_time),
        Panel(
            "failures-categories",
            "Categories",
            "",
            "table",
            failures.categories,
        ),
        Panel(
            "failures-lemons",
            "Nodes beyond chance",
            "Nodes on which more runs failed than their hours explain; found over the whole store.",
            "table",
            alerts.lemon_nodes,
            live=True,
        ),
    ),
)
PREEMPTIONS_PAGE = Page(
    "/preemptions",
    "Preemptions",
    "Each time that the scheduler or the cloud took the machines away, and what that cost.",
    (
        Panel("preempted-headline", "Headline", "", "cards", preemptions.headline),
        Panel(
            "preempted-time",
            "Over time",
            "Accelerator-hours rolled back and spent on recovery.",
            "chart",
            preemptions.over_time,
        ),
        Panel(
            "preempted-ledger", "Ledger", "The newest first.", "table", preemptions.preemption_list
        ),
    ),
    ("page",),
)
RUNS_PAGE = Page(
    "/runs",
    "Runs",
    "Search by name, id, job, user, team or model.",
    (Panel("runs", "Runs", "", "table", runs.run_list),),
    ("q", "sort", "page", "category", "host", "outcome"),
)
ALERTS_PAGE = Page(
    "/alerts",
    "Alerts",
    "What rules have raised, and what looks wrong without any rule.",
    (
        Panel("alerts", "Raised by rules", "", "table", alerts.raised_alerts, live=True),
        Panel(
            "alerts-changes",
            "Regressions",
            "Slices that train less than before; false finds: the false discovery rate.",
            "table",
            alerts.regressions,
            live=True,
        ),
        Panel(
            "alerts-running",
            "Running jobs that fall behind",
            "Below the least of their slice, or slower than in their own first hours.",
            "table",
            alerts.slow_jobs,
            live=True,
        ),
    ),
)
PAGES = (
    OVERVIEW_PAGE,
    START_PAGE,
    RECOVER_PAGE,
    CHECKPOINTS_PAGE,
    FAILURES_PAGE,
    PREEMPTIONS_PAGE,
    RUNS_PAGE,
    ALERTS_PAGE,
)
RUN_PAGE = Page(
    "/runs/",
    "Run",
    "",
    (
        Panel("run-headline", "Headline", "", "cards", run.headline),
        Panel(
            "run-buckets",
            "Where the time went",
            "From the wall time down to what trained on new data.",
            "chart",
            run.buckets,
        ),
        Panel("run-hours", "Hour by hour", "Minutes of each hour.", "chart", run.by_hour),
        Panel("run-attempts", "Attempts", "", "table", run.attempts),
        Panel("run-failures", "Failures", "", "table", run.failures),
        Panel("run-saves", "Saves", "The last ones.", "table", run.saves),
        Panel("run-compiles", "Compiles", "The longest first.", "table", run.compiles),
        Panel("run-nodes", "Nodes", "", "table", run.nodes),
    ),
)
PANELS = {panel.name: panel for page in (*PAGES, RUN_PAGE) for panel in page.panels}
