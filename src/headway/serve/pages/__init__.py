"""All pages and panels, by path and name."""

from __future__ import annotations

from headway.serve.pages.alerts import ALERTS_PAGE
from headway.serve.pages.checkpoints import CHECKPOINTS_PAGE
from headway.serve.pages.failures import FAILURES_PAGE
from headway.serve.pages.overview import OVERVIEW_PAGE
from headway.serve.pages.preemptions import PREEMPTIONS_PAGE
from headway.serve.pages.recover import RECOVER_PAGE
from headway.serve.pages.run import RUN_PAGE
from headway.serve.pages.runs import RUNS_PAGE
from headway.serve.pages.start import START_PAGE

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


PANELS = {panel.name: panel for page in (*PAGES, RUN_PAGE) for panel in page.panels}
