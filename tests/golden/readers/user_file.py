"""Files that users write, as they are understood."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest import mock

from headway.chaos.plan import read_plan
from headway.fleet.alerts.rules import read_rules
from headway.publish.recipe import read_recipe
from headway.schedule import quotas
from tests.golden.cases import asked

# Names that fields of `Rule` had when the expected values were recorded.
FORMER_RULE_FIELDS = {
    "for_s": "hold",
    "keep_firing_for": "clear",
    "window": "over",
    "receivers": "to",
    "repeat_interval": "renotify",
    "min_jobs": "least_jobs",
    "min_change": "points",
    "fdr": "level",
}


def read(name: str, files: Path) -> Any:
    readers = {
        "chaos_plan": _chaos_plan,
        "alert_rules": _alert_rules,
        "publish_recipe": _publish_recipe,
        "settings": _settings,
        "quotas": _quotas,
    }
    return readers[name](files)


def _chaos_plan(files: Path) -> Any:
    inline = (files / "plan.txt").read_text()
    plans = {
        "toml": read_plan(str(files / "plan.toml")),
        "json": read_plan(str(files / "plan.json")),
        "inline": read_plan(inline),
    }
    return {name: asdict(plan) for name, plan in plans.items()}


def _alert_rules(files: Path) -> Any:
    rules = read_rules((files / "rules.toml").read_text(), "rules.toml")
    return {
        "rules": [
            {FORMER_RULE_FIELDS.get(field, field): value for field, value in asdict(rule).items()}
            for rule in rules.rules
        ],
        "channels": {name: asdict(channel) for name, channel in rules.channels.items()},
    }


def _publish_recipe(files: Path) -> Any:
    found = asdict(read_recipe(files / "recipe.toml"))
    assert found.pop("folder") == files.resolve()
    return found


def _settings(files: Path) -> Any:
    """Of a process in that folder, with nothing else that says one."""
    found, here = {}, Path.cwd()
    clean = {name: one for name, one in os.environ.items() if not name.startswith("HEADWAY_")}
    with mock.patch.dict(os.environ, clean, clear=True):
        for folder in ("headway", "pyproject"):
            os.chdir(files / folder)
            try:
                found[folder] = asked("config", "--json")
            finally:
                os.chdir(here)
    return found


def _quotas(files: Path) -> Any:
    path = files / "quotas.csv"
    return {
        "first": quotas.read_quotas(path),
        "later": [asdict(one) for one in quotas.read_quota_changes(path)],
    }
