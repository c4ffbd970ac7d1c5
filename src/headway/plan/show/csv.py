"""The curves of a plan as CSV: one line for each interval of each row."""

from __future__ import annotations

import csv
import io

from headway.plan.sweep import Plan, point_to_dict


def csv_text(plan: Plan) -> str:
    """The interval in force is a line of its own, marked in the last column."""
    made = io.StringIO()
    out = csv.writer(made, lineterminator="\n")
    out.writerow(["nodes", *point_to_dict(plan.rows[0].at), "in_force"])
    for row in plan.rows:
        for one in row.curve:
            out.writerow([row.case.nodes, *point_to_dict(one).values(), 0])
        out.writerow([row.case.nodes, *point_to_dict(row.at).values(), 1])
    return made.getvalue()
