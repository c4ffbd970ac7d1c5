"""Whether slurmctld would evict by itself meanwhile: its own choice is by QOS, size and start."""

from __future__ import annotations

import re
from collections.abc import Iterator

from headway.errors import with_code
from headway.schedule.slurm.calls import RunCommand
from headway.schedule.slurm.state import QOS_COMMAND, parse_qos

NOT_EXEMPT = ("", "00:00:00", "-1")


def exemption_warnings(ask: RunCommand, config: str) -> Iterator[str]:
    """A line for each QOS whose jobs slurmctld takes without asking anybody."""
    told = dict(re.findall(r"^(\w+)\s*=\s*(\S*)", config, re.MULTILINE))
    if told.get("PreemptType") != "preempt/qos" or told.get("PreemptExemptTime") not in NOT_EXEMPT:
        return
    known = parse_qos(ask(*QOS_COMMAND))
    for name in sorted({name for one in known.values() for name in one.preempts}):
        if name in known and known[name].exempt in NOT_EXEMPT:
            yield with_code(
                f"slurmctld evicts jobs of the QOS {name} itself, at once; type: "
                f"sacctmgr modify qos {name} set PreemptExemptTime=7-00:00:00",
                code="qos-not-exempt",
            )
