"""Whether slurmctld would evict by itself meanwhile: its own choice is by QOS, size and start."""

from __future__ import annotations

import re
from collections.abc import Iterator

from headway.errors import with_code
from headway.schedule.slurm.calls import Say
from headway.schedule.slurm.state import QOS, qos

NONE = ("", "00:00:00", "-1")


def warnings(ask: Say, config: str) -> Iterator[str]:
    """A line for each QOS whose jobs slurmctld takes without asking anybody."""
    told = dict(re.findall(r"^(\w+)\s*=\s*(\S*)", config, re.MULTILINE))
    if told.get("PreemptType") != "preempt/qos" or told.get("PreemptExemptTime") not in NONE:
        return
    known = qos(ask(*QOS))
    for name in sorted({name for one in known.values() for name in one.preempts}):
        if name in known and known[name].exempt in NONE:
            yield with_code(
                f"slurmctld evicts jobs of the QOS {name} itself, at once; type: "
                f"sacctmgr modify qos {name} set PreemptExemptTime=7-00:00:00",
                code="qos-not-exempt",
            )
