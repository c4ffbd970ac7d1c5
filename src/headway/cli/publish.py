"""Publish an anchor checkpoint as an inference-ready snapshot, on any machine with a CPU torch.

  headway publish checkpoints --recipe recipe.toml --to ./snapshots
  headway publish --watch checkpoints --recipe recipe.toml --to ./snapshots
  headway publish --list --to ./snapshots
  headway publish --show latest --to ./snapshots
  headway publish --rollback --to ./snapshots        serve the previous snapshot again

A recipe gives the model's factory, golden inputs that validate every target, and the targets:

  [model]
  factory = "model:build"        # module:function, next to the recipe or installed
  [golden]
  inputs = "model:golden"        # a function that returns inputs
  [targets.aoti]                 # compiled code for torch without Python; also: safetensors, onnx
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway import redact
from headway.errors import MissingExtra, SnapshotDamaged, UsageError

if TYPE_CHECKING:
    from headway.publish.snapshot import Snapshot
    from headway.publish.store import SnapshotStore


def prepare(parser: argparse.ArgumentParser) -> None:
    parser.usage = "headway publish ANCHOR --recipe FILE --to STORE [options]"
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument(
        "anchor", nargs="?", metavar="ANCHOR", help="checkpoint, or checkpoint store"
    )
    action.add_argument(
        "--watch", metavar="DIR|URL", help="publish new anchors of this store as they appear"
    )
    action.add_argument("--list", action="store_true", help="list the snapshots, the newest last")
    action.add_argument("--show", metavar="SNAPSHOT", help="print the manifest of a snapshot")
    action.add_argument(
        "--rollback", nargs="?", const="", metavar="SNAPSHOT", help="serve an earlier snapshot"
    )
    parser.add_argument("--to", required=True, metavar="STORE", help="folder or URL of snapshots")
    parser.add_argument("--recipe", metavar="FILE", help="recipe of the publish")
    parser.add_argument("--run", metavar="RUN", help="training run of the anchor")
    parser.add_argument("--again", action="store_true", help="publish even if already published")
    parser.add_argument(
        "--every", type=float, default=10.0, metavar="S", help="watch: seconds between checks (10)"
    )
    parser.add_argument(
        "--once", action="store_true", help="watch: publish the existing anchors and exit"
    )
    parser.add_argument("--check", action="store_true", help="list: read and verify every byte")
    parser.add_argument("--json", action="store_true", help="list, show: print JSON")


def run(args: argparse.Namespace) -> int:
    from headway.publish.store import SnapshotStore

    store = SnapshotStore(args.to)
    if args.list:
        return _list(store, args)
    if args.show is not None:
        return _show(store, store.snapshot(args.show), args)
    if args.rollback is not None:
        return _rollback(store, args)
    return _publish(store, args)


def _log(text: str) -> None:
    print(text, flush=True)


def _rollback(store: SnapshotStore, args: argparse.Namespace) -> int:
    _log(f"{store.rollback(args.rollback or None, _log).name} is serving now")
    from headway.publish import registry

    options = registry.remembered_options(store)
    if options is not None:
        version = registry.follow(store, options, registry.open_registry(options))
        if version is not None:
            _log(f"{options.alias} of {options.mlflow} is now version {version}")
    return 0


def _publish(store: SnapshotStore, args: argparse.Namespace) -> int:
    if args.recipe is None:
        raise UsageError(
            "a publish needs --recipe FILE; `headway publish --help` shows one",
            code="recipe-not-given",
        )
    from headway.publish import recipe
    from headway.publish.anchor import find_anchor

    options = recipe.read_recipe(Path(args.recipe))
    anchor = find_anchor(args.anchor) if args.watch is None else None
    try:
        import torch  # noqa: F401
    except ImportError:
        raise MissingExtra("a publish needs torch", extra="torch") from None
    from headway.publish import link

    if anchor is None:
        from headway.publish.watch import watch

        schedule = {"every_s": args.every, "once": args.once}
        watch(args.watch, options, store, log=_log, publish=link.publish_linked, **schedule)
        return 0
    from headway.publish import claims
    from headway.publish.job import after_publish

    started = time.monotonic()
    after = after_publish(options, store, _log)
    anchor = link.with_training_run(anchor, args.run)
    with after.registering(), claims.claim_anchor(anchor) as claim:
        outcome = link.publish_linked(anchor, options, store, again=args.again)
        name = outcome.snapshot.name
        if outcome.fresh:
            _log(_summary_line(outcome.snapshot, serving=True))
            _log(f"published in {time.monotonic() - started:.1f} s; load it with:")
            _log(f"  headway.publish.load({args.to!r}, {name!r})")
        else:
            _log(f"{args.anchor} is already published as {name}; --again publishes it again")
        after.release(anchor, claim)
    return 0


def _list(store: SnapshotStore, args: argparse.Namespace) -> int:
    snapshots, unreadable = store.snapshots(), store.unreadable()
    damage = {
        snapshot.name: store.damage(snapshot, every_byte=args.check) for snapshot in snapshots
    }
    serving, latest_error = None, None
    try:
        latest = store.latest()
        serving = latest.name if latest else None
    except SnapshotDamaged as error:
        latest_error = error
    if args.json:
        rows = [
            {**_row(snapshot, snapshot.name == serving), "damage": damage[snapshot.name]}
            for snapshot in snapshots
        ]
        print(json.dumps(rows, indent=1))
    else:
        if not snapshots:
            print(f"no snapshots in {redact.text(store.place.url)}")
        for snapshot in snapshots:
            print(
                _summary_line(snapshot, serving=snapshot.name == serving),
                *filter(None, [damage[snapshot.name]]),
            )
    if latest_error is not None:
        raise latest_error
    damaged = {name: reason for name, reason in (damage | unreadable).items() if reason}
    if damaged:
        name = max(damaged)
        more = f", and {len(damaged) - 1} more cannot" if len(damaged) > 1 else ""
        raise SnapshotDamaged(
            f"the snapshot {name} cannot serve: {damaged[name]}{more}", code="snapshot-damaged"
        )
    return 0


def _row(snapshot: Snapshot, serving: bool) -> dict[str, Any]:
    manifest = snapshot.manifest
    return {
        "snapshot": snapshot.name,
        "serves": serving,
        "made": manifest.made,
        "anchor": manifest.anchor["path"],
        "step": manifest.anchor["step"],
        "bytes": manifest.size,
        "targets": list(manifest.targets),
    }


def _summary_line(snapshot: Snapshot, *, serving: bool) -> str:
    row = _row(snapshot, serving)
    created = time.strftime("%Y-%m-%d %H:%M", time.localtime(row["made"]))
    step = "" if row["step"] is None else f"step {row['step']}"
    size = f"{row['bytes'] / 1e6:.1f} MB"
    targets = " ".join(row["targets"])
    return f"{snapshot.name} {'*' if serving else ' '} {created} {step:>12} {size:>10}  {targets}"


def _show(store: SnapshotStore, snapshot: Snapshot, args: argparse.Namespace) -> int:
    _print_details(snapshot, args)
    if reason := store.damage(snapshot):
        raise SnapshotDamaged(
            f"the snapshot {snapshot.name} cannot serve: {reason}", code="snapshot-damaged"
        )
    return 0


def _print_details(snapshot: Snapshot, args: argparse.Namespace) -> None:
    manifest = snapshot.manifest
    detail = {"snapshot": snapshot.name, **vars(manifest)}
    detail["files"] = {name: vars(file) for name, file in manifest.files.items()}
    detail["targets"] = {name: vars(target) for name, target in manifest.targets.items()}
    if args.json:
        print(json.dumps(detail, indent=1))
        return
    for name, value in detail.items():
        if not isinstance(value, dict):
            print(_printable(f"{name:<10} {value}"))
            continue
        print(name)
        for key, inner in value.items():
            print(_printable(f"  {key:<22} {_format_value(inner)}"))


def _format_value(value: Any) -> str:
    if not isinstance(value, dict):
        return str(value)
    if "sha256" in value:
        return f"{value['size']:>12} bytes  {value['sha256']}"
    metrics = value.get("metrics", value)
    return "  ".join(f"{key} {_format_number(number)}" for key, number in metrics.items())


def _format_number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, (int, float)) else str(value)


def _printable(text: str) -> str:
    """Replace control characters: a manifest from elsewhere could change the terminal."""
    return "".join(sign if sign.isprintable() else "?" for sign in text)
