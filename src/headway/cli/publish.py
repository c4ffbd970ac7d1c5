"""Make an inference-ready snapshot of an anchor checkpoint, on any machine with a CPU torch.

  headway publish checkpoints --recipe recipe.toml --to ./snapshots
  headway publish --watch checkpoints --recipe recipe.toml --to ./snapshots
  headway publish --list --to ./snapshots
  headway publish --show latest --to ./snapshots
  headway publish --rollback --to ./snapshots        the one before serves again

A recipe names the model's factory, inputs on which everything has to agree, and what to make:

  [model]
  factory = "model:build"        # module:function, beside the recipe or installed
  [golden]
  inputs = "model:golden"        # a function that gives inputs
  [targets.aoti]                 # code for torch without Python; also: safetensors, onnx
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.errors import UsageError

if TYPE_CHECKING:
    from headway.publish.snapshot import Snapshot
    from headway.publish.store import Store


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `headway publish`."""
    parser.usage = "headway publish ANCHOR --recipe FILE --to STORE [options]"
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("anchor", nargs="?", metavar="ANCHOR", help="checkpoint, or a store of them")
    what.add_argument("--watch", metavar="DIR|URL", help="publish anchors as they appear there")
    what.add_argument("--list", action="store_true", help="the snapshots, the newest last")
    what.add_argument("--show", metavar="SNAPSHOT", help="all that is known of one")
    what.add_argument(
        "--rollback", nargs="?", const="", metavar="SNAPSHOT", help="let an earlier one serve"
    )
    parser.add_argument("--to", required=True, metavar="STORE", help="folder or URL of snapshots")
    parser.add_argument("--recipe", metavar="FILE", help="what to make")
    parser.add_argument("--again", action="store_true", help="also if it was published before")
    parser.add_argument("--every", type=float, default=10.0, metavar="S", help="watch: how often")
    parser.add_argument("--once", action="store_true", help="watch: what is there, and end")
    parser.add_argument("--json", action="store_true", help="list, show: print JSON")


def run(args: argparse.Namespace) -> int:
    """Do it."""
    from headway.publish.store import Store

    store = Store(args.to)
    if args.list:
        return _list(store, args)
    if args.show is not None:
        return _show(store.snapshot(args.show), args)
    if args.rollback is not None:
        print(f"{store.rollback(args.rollback or None).name} serves now")
        return 0
    return _publish(store, args)


def _publish(store: Store, args: argparse.Namespace) -> int:
    if args.recipe is None:
        raise UsageError("a publish needs --recipe FILE; `headway publish --help` shows one")
    from headway.publish import recipe
    from headway.publish.anchor import find

    told = recipe.read(Path(args.recipe))
    anchor = find(args.anchor) if args.watch is None else None
    try:
        import torch  # noqa: F401
    except ImportError:
        raise UsageError("a publish needs torch; type: pip install torch") from None
    if anchor is None:
        from headway.publish.watch import watch

        def say(text: str) -> None:
            print(text, flush=True)

        watch(args.watch, told, store, say=say, every_s=args.every, once=args.once)
        return 0
    from headway.publish.job import publish

    begun = time.monotonic()
    outcome = publish(anchor, told, store, again=args.again)
    name = outcome.snapshot.name
    if not outcome.fresh:
        print(f"{args.anchor} was published before, as {name}; --again does it anew")
        return 0
    print(_line(outcome.snapshot, serving=True))
    print(f"published in {time.monotonic() - begun:.1f} s; load it with:")
    print(f"  headway.publish.load({args.to!r}, {name!r})")
    return 0


def _list(store: Store, args: argparse.Namespace) -> int:
    found = store.snapshots()
    latest = store.latest()
    serving = latest.name if latest else None
    if args.json:
        print(json.dumps([_row(one, one.name == serving) for one in found], indent=1))
        return 0
    if not found:
        print(f"no snapshots in {store.place.url}")
    for one in found:
        print(_line(one, serving=one.name == serving))
    return 0


def _row(one: Snapshot, serving: bool) -> dict[str, Any]:
    told = one.manifest
    return {
        "snapshot": one.name,
        "serves": serving,
        "made": told.made,
        "anchor": told.anchor["path"],
        "step": told.anchor["step"],
        "bytes": told.size,
        "targets": list(told.targets),
    }


def _line(one: Snapshot, *, serving: bool) -> str:
    row = _row(one, serving)
    made = time.strftime("%Y-%m-%d %H:%M", time.localtime(row["made"]))
    step = "" if row["step"] is None else f"step {row['step']}"
    size = f"{row['bytes'] / 1e6:.1f} MB"
    targets = " ".join(row["targets"])
    return f"{one.name} {'*' if serving else ' '} {made} {step:>12} {size:>10}  {targets}"


def _show(one: Snapshot, args: argparse.Namespace) -> int:
    told = one.manifest
    detail = {"snapshot": one.name, **vars(told)}
    detail["files"] = {name: vars(file) for name, file in told.files.items()}
    detail["targets"] = {name: vars(made) for name, made in told.targets.items()}
    if args.json:
        print(json.dumps(detail, indent=1))
        return 0
    for name, value in detail.items():
        if not isinstance(value, dict):
            print(f"{name:<10} {value}")
            continue
        print(name)
        for key, inner in value.items():
            print(f"  {key:<22} {_plain(inner)}")
    return 0


def _plain(value: Any) -> str:
    if not isinstance(value, dict):
        return str(value)
    if "sha256" in value:
        return f"{value['size']:>12} bytes  {value['sha256']}"
    told = value.get("metrics", value)
    return "  ".join(f"{key} {one:.4g}" for key, one in told.items())
