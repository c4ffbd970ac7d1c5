"""What runs have learned for the next, as the next one sees it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest import mock

from headway import probe as headway_probe
from headway.compile.autotune import advice
from headway.compile.recompiles import learning
from headway.launch.warm.preload_plan import WarmState
from headway.probe.autotune import advice as narrowed
from tests.golden.cases import asked


def read(name: str, files: Path) -> Any:
    return {"auto": _auto, "learn": _learn, "warm": _warm, "autotune": _autotune}[name](files)


def _auto(files: Path) -> Any:
    runs = str(files / "headway")
    found = asked("auto", "show", "--runs", runs, "--json")
    for profile in found:
        assert asked("auto", "show", profile["job"], "--runs", runs, "--json") == profile
    kept = files / "headway" / ".auto" / "train-0a1b2c3d.autotune"
    return {"profiles": found, "autotune": _narrowed(kept)}


def _learn(files: Path) -> Any:
    found = {}
    for path in sorted((files / learning.LEARNED_FOLDER).glob("*.json")):
        known = learning.read_learned(path)
        ways = {
            name: learning.settings_to_apply(known, name, {})[0]
            for name in ("another", *known.paces)
        }
        found[path.stem] = {"known": asdict(known), "set": ways}
    return found


def _warm(files: Path) -> Any:
    return asdict(WarmState.read(files))


def _autotune(files: Path) -> Any:
    return _narrowed(advice.find_advice_file(str(files / "autotune.json")))


def _narrowed(path: Path) -> Any:
    """For each key of each kernel what is tried, on the machine that it was recorded on."""
    advice.check_advice_file(path)
    content = json.loads(path.read_text())
    machine = {name: content[name] for name in narrowed.ALL_GUARDS}
    found: dict[str, Any] = {}
    with (
        mock.patch.dict(os.environ, {headway_probe.ENV_AUTOTUNE: str(path)}),
        mock.patch.object(narrowed, "tuning_facts", lambda: machine),
    ):
        for one in content["kernels"]:
            known = narrowed.find_kernel(one["kind"], one["id"], one["name"])
            assert known is not None
            for entry in one["keys"]:
                use = known.use(entry["key"], entry["rest"])
                assert use is not None
                told = {"tried": sorted(use.tried), "take": list(use.take), "ms": use.ms}
                found[f"{one['id']} {entry['key']}"] = told
    return {"machine": machine, "keys": found}
