"""Grafana dashboard over the Prometheus metrics of a fleet store."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

SELECTOR = 'team=~"$team", model=~"$model"'


class Panel(NamedTuple):
    """A panel: title, PromQL expression, legend, unit and layout."""

    title: str
    expr: str
    legend: str
    unit: str
    kind: str = "timeseries"
    width: int = 12


PANELS = (
    Panel(
        "ETT%, by accelerator-hours",
        f'headway_fleet_ett_percent{{weight="accelerators", {SELECTOR}}}',
        "{{team}} {{model}}",
        "percent",
    ),
    Panel(
        "ETT%, unweighted",
        f'headway_fleet_ett_percent{{weight="jobs", {SELECTOR}}}',
        "{{team}} {{model}}",
        "percent",
    ),
    Panel(
        "Lost accelerator time, by bucket",
        f"topk(12, sum by (leaf) (headway_fleet_lost_accelerator_seconds{{{SELECTOR}}}))",
        "{{leaf}}",
        "s",
        "bargauge",
    ),
    Panel(
        "Failures",
        f"sum by (category) (headway_fleet_failures{{{SELECTOR}}})",
        "{{category}}",
        "short",
        "bargauge",
    ),
    Panel(
        "Time to Start, p90",
        f'headway_fleet_time_to_start_seconds{{quantile="0.9", {SELECTOR}}}',
        "{{team}} {{model}}",
        "s",
    ),
    Panel(
        "Time to Recover, p90",
        f'headway_fleet_time_to_recover_seconds{{quantile="0.9", {SELECTOR}}}',
        "{{team}} {{model}}",
        "s",
    ),
    Panel(
        "Failure%, by accelerator-hours",
        f'headway_fleet_failure_percent{{weight="accelerators", {SELECTOR}}}',
        "{{team}} {{model}}",
        "percent",
    ),
    Panel(
        "Training blocked by a save",
        f"headway_fleet_checkpoint_blocked_seconds{{{SELECTOR}}}",
        "{{team}} {{model}} {{level}}",
        "s",
    ),
    Panel(
        "Cost of evicting a run now, accelerator time",
        "topk(12, headway_eviction_cost_accelerator_seconds)",
        "{{run}}",
        "s",
        "bargauge",
    ),
)


def dashboard() -> str:
    """The dashboard as JSON, for Dashboards > Import; Grafana asks for the data source."""
    source = {"type": "prometheus", "uid": "${DS_PROMETHEUS}"}
    content: dict[str, Any] = {
        "__inputs": [
            {
                "name": "DS_PROMETHEUS",
                "label": "Prometheus",
                "type": "datasource",
                "pluginId": "prometheus",
                "pluginName": "Prometheus",
            }
        ],
        "title": "Headway fleet",
        "uid": "headway-fleet",
        "tags": ["headway"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "time": {"from": "now-30d", "to": "now"},
        "refresh": "5m",
        "templating": {"list": [_variable(source, name) for name in ("team", "model")]},
        "panels": [_panel(source, index, panel) for index, panel in enumerate(PANELS)],
    }
    return json.dumps(content, indent=1) + "\n"


def _variable(source: dict[str, str], label: str) -> dict[str, Any]:
    return {
        "name": label,
        "label": label,
        "type": "query",
        "datasource": source,
        "query": f"label_values(headway_fleet_ett_percent, {label})",
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _panel(source: dict[str, str], index: int, panel: Panel) -> dict[str, Any]:
    per_row = 24 // panel.width
    place = {"x": index % per_row * panel.width, "y": index // per_row * 8}
    return {
        "id": index + 1,
        "title": panel.title,
        "type": panel.kind,
        "datasource": source,
        "gridPos": {**place, "w": panel.width, "h": 8},
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "targets": [
            {
                "refId": "A",
                "datasource": source,
                "expr": panel.expr,
                "legendFormat": panel.legend,
                "instant": panel.kind == "bargauge",
            }
        ],
    }
