"""Make the files of a snapshot from an anchor; at most one copy of the model is in memory."""

from __future__ import annotations

import contextlib
import errno
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from headway.errors import HeadwayError, PublishFailed
from headway.publish import failures, golden, model, safetensors_io, tables
from headway.publish.anchor import Anchor, fetch_anchor
from headway.publish.failures import raise_if_transient
from headway.publish.recipe import Recipe
from headway.publish.snapshot import SnapshotFile
from headway.publish.source import TensorSource, open_source
from headway.publish.store import SnapshotStore
from headway.publish.targets.base import CONFIG, WEIGHTS, Packages, Target, Work
from headway.storage import disk

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)  # not caused by the anchor
SHARED_FILES = (WEIGHTS, CONFIG, golden.GOLDEN_FILE)  # files of every target


@dataclass(frozen=True)
class SnapshotFiles:
    """Files by name, names of files by target, and seconds by step."""

    files: dict[str, SnapshotFile]
    by_target: dict[str, tuple[str, ...]]
    seconds: dict[str, float]


def make_files(
    anchor: Anchor,
    recipe: Recipe,
    store: SnapshotStore,
    targets: Mapping[str, Target],
    folder: Path,
    packages: Packages,
) -> SnapshotFiles:
    """Write all files to the store; they are not part of a snapshot yet."""
    seconds: dict[str, float] = {}
    with _timed(seconds, "load"):
        # Import user code first: it may allow classes that the anchor needs.
        built = model.build_model(recipe.model.factory, recipe.model.arguments, recipe.folder)
        source = open_source(fetch_anchor(anchor, folder))
        inputs, recorded = golden.golden_inputs(recipe, source)
        model.load_weights(built, source, recipe.model)
    with _timed(seconds, "process"):
        outputs, table_configs = _process_tables(anchor, recipe, built, source, inputs, recorded)
    files: dict[str, SnapshotFile] = {}
    by_target: dict[str, tuple[str, ...]] = {}
    for name, target in targets.items():
        with _timed(seconds, name):
            target_folder = folder / "made" / name
            target_folder.mkdir(parents=True)
            work = Work(built, inputs, recipe.golden.batch, target_folder, packages)
            try:
                names = target.make(work)
            except HeadwayError:
                raise
            except Exception as error:  # of any kind: the target may be user code
                if isinstance(error, OSError) and error.errno in DISK_FULL:
                    raise
                raise_if_transient(
                    f"{name} cannot be made now: {failures.describe_error(error)}", error
                )
                raise PublishFailed(
                    f"{name} cannot be made: {failures.describe_error(error)}",
                    code="target-not-made",
                ) from error
            for file in names:
                files[file] = store.add(_file_pieces(target_folder / file), Path(file).suffix)
            by_target[name] = (*SHARED_FILES, *names)
    with _timed(seconds, "write"):
        config = {
            "factory": recipe.model.factory,
            "arguments": dict(recipe.model.arguments),
            "tables": table_configs,
            "inputs": inputs.spec,
        }
        files[WEIGHTS] = store.add(_tensor_pieces(built.state_dict()), safetensors_io.SUFFIX)
        files[golden.GOLDEN_FILE] = store.add(
            _tensor_pieces(golden.golden_tensors(inputs, outputs)), safetensors_io.SUFFIX
        )
        files[CONFIG] = store.add(lambda: [json.dumps(config, indent=1).encode()], ".json")
    return SnapshotFiles(files, by_target, seconds)


def _process_tables(
    anchor: Anchor,
    recipe: Recipe,
    built: nn.Module,
    source: TensorSource,
    inputs: golden.GoldenInputs,
    recorded: list[Tensor],
) -> tuple[list[Tensor], dict[str, Any]]:
    """Outputs of the model with its processed tables, and their configuration."""
    prefix = f"{anchor.path} is not published"
    outputs = inputs.call(built)
    if not golden.all_finite(outputs):
        raise PublishFailed(
            f"{prefix}: the outputs of the model are not finite", code="model-not-finite"
        )
    if recorded:
        gap = golden.max_difference(outputs, recorded)
        if gap > recipe.golden.tolerance:
            raise PublishFailed(
                f"{prefix}: the outputs differ by {gap:.3g} from the recorded ones, "
                f"more than the tolerance {recipe.golden.tolerance:g}",
                code="golden-outputs-differ",
            )
    table_configs = tables.process(built, recipe.tables, source)
    if not table_configs:
        return outputs, table_configs
    smaller = inputs.call(built)
    gap = golden.max_difference(smaller, outputs)
    if gap > recipe.tables.tolerance:
        raise PublishFailed(
            f"{prefix}: with processed tables the outputs differ by {gap:.3g}, "
            f"more than the tolerance {recipe.tables.tolerance:g}",
            code="smaller-tables-differ",
        )
    return smaller, table_configs


def _tensor_pieces(tensors: Mapping[str, Tensor]) -> Callable[[], Iterable[memoryview]]:
    return lambda: safetensors_io.pieces(tensors)


def _file_pieces(path: Path) -> Callable[[], Iterable[memoryview]]:
    return lambda: disk.pieces(str(path))


@contextlib.contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    started = time.monotonic()
    yield
    seconds[name] = round(time.monotonic() - started, 3)
