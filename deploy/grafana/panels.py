"""What dashboards are made of: panels as the JSON that Grafana reads, laid out in rows.

Written by hand and not with an SDK: of Grafana's schema some thirty keys are needed, and what is
generated must not change with another project's release.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

SCHEMA_VERSION = 39  # Grafana 10.4 and newer migrate from it
GRID_COLUMNS = 24
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}

Json = dict[str, Any]


@dataclass(frozen=True)
class Query:
    """One PromQL expression and how its series are called; ``{{label}}`` stands for its value."""

    expr: str
    legend: str = "{{instance}}"


@dataclass(frozen=True)
class Panel:
    """One picture. ``height`` and ``width`` are in cells of Grafana's grid, 24 to a row."""

    title: str
    queries: tuple[Query, ...]
    kind: str = "timeseries"
    unit: str = "short"
    width: int = 8
    height: int = 8
    help: str = ""
    is_stacked: bool = False
    is_log: bool = False
    maximum: float | None = None
    mappings: tuple[Json, ...] = ()
    steps: tuple[tuple[str, float | None], ...] = (("green", None),)

    def to_json(self, number: int, x: int, y: int) -> Json:
        """Return the panel at (x, y); ``number`` is unique on its dashboard."""
        is_table = self.kind == "table"
        return {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.help,
            "datasource": DATASOURCE,
            "gridPos": {"x": x, "y": y, "w": self.width, "h": self.height},
            "targets": [
                {
                    "refId": chr(ord("A") + index),
                    "datasource": DATASOURCE,
                    "expr": query.expr,
                    "legendFormat": query.legend,
                    "range": not is_table,
                    "instant": is_table,
                    "format": "table" if is_table else "time_series",
                }
                for index, query in enumerate(self.queries)
            ],
            "fieldConfig": {"defaults": self._defaults(), "overrides": []},
            "options": _OPTIONS.get(self.kind, {}),
            "transformations": _TABLE_TRANSFORMATIONS if is_table else [],
        }

    def _defaults(self) -> Json:
        defaults: Json = {
            "unit": self.unit,
            "mappings": list(self.mappings),
            "color": {"mode": "thresholds" if self.kind != "timeseries" else "palette-classic"},
            "thresholds": {
                "mode": "absolute",
                "steps": [{"color": color, "value": value} for color, value in self.steps],
            },
        }
        if self.maximum is not None:
            defaults |= {"min": 0, "max": self.maximum}
        if self.kind == "timeseries":
            defaults["custom"] = {
                "lineWidth": 1,
                "fillOpacity": 30 if self.is_stacked else 0,
                "stacking": {"mode": "normal" if self.is_stacked else "none", "group": "A"},
                "scaleDistribution": {"type": "log", "log": 10}
                if self.is_log
                else {"type": "linear"},
                "spanNulls": False,
            }
        return defaults


@dataclass(frozen=True)
class Row:
    """A heading, and what stands under it."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Board:
    """One dashboard. ``uid`` is part of its address and never changes."""

    uid: str
    title: str
    rows: tuple[Row, ...]
    has_instances: bool = False  # with a variable that chooses nodes
    refresh: str = "30s"

    def to_json(self) -> Json:
        """Return what Grafana provisions: without an ``id``, which belongs to one database."""
        return {
            "uid": self.uid,
            "title": self.title,
            "tags": ["swarmnode"],
            "schemaVersion": SCHEMA_VERSION,
            "version": 1,
            "editable": False,
            "graphTooltip": 1,  # one cross-hair over all panels
            "refresh": self.refresh,
            "time": {"from": "now-6h", "to": "now"},
            "timezone": "browser",
            "links": [
                {
                    "type": "dashboards",
                    "title": "swarmnode",
                    "tags": ["swarmnode"],
                    "keepTime": True,
                    "includeVars": True,
                    "asDropdown": False,
                }
            ],
            "annotations": {"list": []},
            "templating": {"list": self._variables()},
            "panels": list(_laid_out(self.rows)),
        }

    def _variables(self) -> list[Json]:
        variables: list[Json] = [
            {
                "name": "datasource",
                "label": "Prometheus",
                "type": "datasource",
                "query": "prometheus",
                "refresh": 1,
            },
            _variable("swarm", "Swarm", 'label_values(up{job="swarmnode"}, swarm)'),
        ]
        if self.has_instances:
            query = 'label_values(up{job="swarmnode", swarm="$swarm"}, instance)'
            several = {
                "multi": True,
                "includeAll": True,
                "allValue": ".*",
                "current": {"text": "All", "value": "$__all"},
            }
            variables.append(_variable("instance", "Node", query) | several)
        return variables


def _variable(name: str, label: str, query: str) -> Json:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "definition": query,
        "query": {"query": query, "refId": name},
        "refresh": 2,  # with the time range too: nodes come and go
        "sort": 1,
    }


def _laid_out(rows: Sequence[Row]) -> list[Json]:
    """Place the panels from left to right, and on the next line where one does not fit."""
    placed: list[Json] = []
    y = 0
    for row in rows:
        placed.append(
            {
                "id": len(placed) + 1,
                "type": "row",
                "title": row.title,
                "collapsed": False,
                "panels": [],
                "gridPos": {"x": 0, "y": y, "w": GRID_COLUMNS, "h": 1},
            }
        )
        x, y, line_height = 0, y + 1, 0
        for panel in row.panels:
            if x + panel.width > GRID_COLUMNS:
                x, y, line_height = 0, y + line_height, 0
            placed.append(panel.to_json(len(placed) + 1, x, y))
            x, line_height = x + panel.width, max(line_height, panel.height)
        y += line_height
    return placed


_OPTIONS: dict[str, Json] = {
    "timeseries": {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "value",
        "graphMode": "area",
        "textMode": "auto",
    },
    "state-timeline": {
        "mergeValues": True,
        "showValue": "never",
        "rowHeight": 0.9,
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": False},
    },
    "table": {"showHeader": True, "cellHeight": "sm"},
}
# Several queries of the same nodes become one line for each node.
_TABLE_TRANSFORMATIONS: list[Json] = [
    {"id": "merge", "options": {}},
    {
        "id": "organize",
        "options": {
            "excludeByName": {"Time": True, "__name__": True, "job": True, "swarm": True},
            "indexByName": {},
            "renameByName": {},
        },
    },
]
