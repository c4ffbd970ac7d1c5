"""A training in which the second expert gets tokens on the last rank only: there alone is a state.

experts.py STORE OUT [--step]

`--step`: make a step and save it; else restore what is there, make a step with all experts, and
save that. Writes OUT.RANK with the parameters of which the optimizer had a state before its step.
"""

import json
import os
import sys
import warnings

import torch
import torch.distributed as dist
from torch import nn

from headway.checkpoint import Checkpointer

warnings.filterwarnings("ignore")
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
store, out, *stepping = sys.argv[1:]
dist.init_process_group("gloo")
torch.manual_seed(0)
experts = nn.ModuleList(nn.Linear(2, 2, bias=False) for _ in range(2))
optimizer = torch.optim.Adam(experts.parameters())
saves = Checkpointer(store, {"model": experts, "optimizer": optimizer}, writer_idle_s=0.1)
used = [experts[0]] if stepping and RANK < WORLD - 1 else list(experts)
if not stepping:
    saves.restore()
kept = {key: float(one["exp_avg"].sum()) for key, one in optimizer.state_dict()["state"].items()}
sum(expert(torch.ones(1, 2)).sum() for expert in used).backward()
optimizer.step()
saves.save(1 if stepping else 2)
saves.close()
with open(f"{out}.{RANK}", "w") as file:
    json.dump(kept, file)
