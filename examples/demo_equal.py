"""Whether three runs trained the same model: the same samples, and the same loss."""

import argparse
import sys
import warnings
from pathlib import Path
from typing import Any

from demo_plan import DLRM, RANKS, Plan, Way

sys.path.insert(0, str(DLRM.resolve()))

HELD_OUT = range(1_000_000, 1_000_020)  # batches that nobody trains on


def samples_wrong(plan: Plan, ways: list[Way]) -> str:
    """What is wrong with what they were trained on; empty if each has seen every batch once."""
    from rehearsal import trained

    first = trained(ways[0].trained)
    for way in ways:
        seen = trained(way.trained)
        if sorted(index for index, _ in seen.values()) != list(range(plan.steps * RANKS)):
            return f"{way.name} has not trained on each of {plan.steps * RANKS} batches once"
        if seen != first:
            return f"{way.name} has trained on other samples than {ways[0].name}"
    return ""


def losses(plan: Plan, ways: list[Way]) -> list[float]:
    """Of the model that each has left, on held-out clicks, by the same code."""
    import torch
    from train import DLRM as Model
    from train import evaluate

    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    args = argparse.Namespace(rows=plan.rows, dim=plan.dim, batch=plan.batch, seed=0)
    found = []
    for way in ways:
        model = Model(args)
        model.load_state_dict(_weights(way, model))
        found.append(evaluate(model, args, torch.device("cpu"), HELD_OUT))
    return found


def _weights(way: Way, model: Any) -> dict[str, Any]:
    import torch

    if way.script == "train.py":
        newest = max(way.checkpoints.glob("step_*.pt"))
        weights: dict[str, Any] = torch.load(newest)["model"]
        return weights
    from torch.distributed.checkpoint.state_dict_loader import load

    from headway.checkpoint.store.store import Store

    found = Store(str(way.checkpoints / "saves")).latest_valid().checkpoint
    if found is None:
        raise SystemExit(f"demo: {way.checkpoints / 'saves'} has no checkpoint that is whole")
    state = {"model": model.state_dict()}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        load(state, checkpoint_id=Path(found.path), no_dist=True)
    return state["model"]


def verdict(plan: Plan, ways: list[Way]) -> tuple[str, str]:
    """What is wrong, or empty; and the sentence that says what is equal."""
    if wrong := samples_wrong(plan, ways):
        return f"NOT the same: {wrong}", ""
    found = losses(plan, ways)
    told = ", ".join(f"{way.name} {loss:.9f}" for way, loss in zip(ways, found, strict=True))
    if len(set(found)) > 1:
        return f"NOT the same: the loss on held-out clicks is {told}", ""
    samples = plan.steps * RANKS * plan.batch
    return "", (
        f"all trained the same: each of {samples:,} samples once, and the loss on held-out "
        f"clicks is {found[0]:.9f} for each, to the bit"
    )
