"""TorchRec: metadata of sharded tables without a gather per table, and cached sharding plans.

headway.integrations.torchrec.install(plans="plans")  # before DistributedModelParallel
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.distributed._shard.sharded_tensor.metadata import ShardedTensorMetadata, TensorProperties
from torch.distributed._shard.sharding_spec.api import EnumerableShardingSpec

from headway.errors import MissingExtra, with_code
from headway.startup.sharding.broadcast import broadcast_and_check
from headway.startup.sharding.plan_cache import PlanCache
from headway.startup.sharding.plan_inputs import describe_inputs

try:
    from torchrec.distributed import embedding, types
    from torchrec.distributed.embedding_types import EmbeddingComputeKernel
    from torchrec.distributed.planner import EmbeddingShardingPlanner
    from torchrec.distributed.sharding_plan import get_default_sharders
    from torchrec.modules.embedding_configs import data_type_to_dtype
except ModuleNotFoundError as error:
    raise MissingExtra(f"{error.name} is not installed", extra="torchrec") from None

# Their tensors are created when they are saved, and have no size before.
VIRTUAL = ("KEY_VALUE", "SSD_VIRTUAL_TABLE", "DRAM_VIRTUAL_TABLE", "DRAM_SSD_VIRTUAL_TABLE")
TWO_DIMENSIONS = getattr(types, "ShardingEnv2D", ())
IGNORED_SETTINGS = (
    "_stats",
    "_debug",
    "_num_proposals",
    "_num_plans",
    "_best_plan",
)  # to what is planned
INIT = "_init_from_local_shards"
_originals: dict[tuple[Any, str], Any] = {}


def install(plans: str | os.PathLike[str] | None = None) -> None:
    """Initialize sharded tables without gathers; with a folder for plans, reuse sharding plans."""
    uninstall()
    _replace(embedding.ShardedEmbeddingCollection, "_initialize_torch_state", _without_gathers)
    if plans is not None:
        cache = PlanCache(plans)
        _replace(EmbeddingShardingPlanner, "collective_plan", lambda _: _with_plan_cache(cache))


def uninstall() -> None:
    for (owner, name), original in _originals.items():
        setattr(owner, name, original)
    _originals.clear()


@contextmanager
def installed(plans: str | os.PathLike[str] | None = None) -> Iterator[None]:
    """The same in a context."""
    install(plans)
    try:
        yield
    finally:
        uninstall()


def collective_plan(
    planner: Any,
    module: torch.nn.Module,
    sharders: Sequence[Any] | None = None,
    group: Any = None,
    *,
    plans: PlanCache,
) -> types.ShardingPlan:
    """The planner's plan, made on rank 0 or cached, on all ranks or on none.

    Every rank must have the same modules and versions as rank 0. The planner settings are those of
    rank 0, as in TorchRec.
    """
    sharders = list(sharders) if sharders is not None else get_default_sharders()
    common = {
        "modules": _modules(module, sharders),
        "versions": _versions(),
        "world_size": dist.get_world_size(group),
    }
    plans_made: list[types.ShardingPlan] = []

    def make() -> dict[str, Any]:
        settings = {k: v for k, v in vars(planner).items() if k not in IGNORED_SETTINGS}
        inputs = {"planner": describe_inputs([type(planner), settings, sharders]), **common}
        encoded = plans.read(inputs)
        if encoded is None or not _is_plan(encoded):
            plans_made.append(planner.plan(module, sharders))
            encoded = encode_plan(plans_made[0])
            if encoded is not None:
                plans.write(inputs, encoded)
        return {"common": common, "plan": encoded}

    def difference(document: Any) -> str:
        return _difference(common, document["common"])

    encoded = broadcast_and_check(make, difference, group=group)["plan"]
    if encoded is not None:
        return decode_plan(encoded)
    result = plans_made or [None]
    dist.broadcast_object_list(result, group=group, group_src=0)
    return result[0]


def encode_plan(plan: types.ShardingPlan) -> Any:
    """The plan as JSON values; None if it contains something that has no such form."""
    modules = []
    for path, module in plan.plan.items():
        if type(module) is not types.EmbeddingModuleShardingPlan:
            return None
        parameters = []
        for name, sharding in module.items():
            values = {field.name: getattr(sharding, field.name) for field in fields(sharding)}
            spec = values.pop("sharding_spec")
            modes = (values.pop("bounds_check_mode"), values.pop("output_dtype"))
            if spec is not None and type(spec) is not EnumerableShardingSpec:
                return None
            if any(not isinstance(v, (str, bool, list, type(None))) for v in values.values()):
                return None
            shards = spec and [
                [shard.shard_offsets, shard.shard_sizes, shard.placement and str(shard.placement)]
                for shard in spec.shards
            ]
            parameters.append([name, values, shards, [mode and mode.name for mode in modes]])
        modules.append([path, parameters])
    return modules


def decode_plan(document: Any) -> types.ShardingPlan:
    """The plan that `encode_plan` encoded."""
    plan = {}
    for path, parameters in document:
        module = types.EmbeddingModuleShardingPlan()
        for name, values, shards, (bounds, output) in parameters:
            module[name] = types.ParameterSharding(
                **values,
                sharding_spec=shards
                and EnumerableShardingSpec([ShardMetadata(*at) for at in shards]),
                bounds_check_mode=types.BoundsCheckMode[bounds] if bounds else None,
                output_dtype=types.DataType[output] if output else None,
            )
        plan[path] = module
    return types.ShardingPlan(plan)


def _is_plan(document: Any) -> bool:
    """Whether it can be decoded: the folder may contain other files."""
    try:
        decode_plan(document)
    except (TypeError, ValueError, KeyError, AttributeError):
        return False
    return True


def _replace(owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
    original = getattr(owner, name, None)
    if original is None:
        where = f"{owner.__name__}.{name}"
        text = f"headway: this torchrec has no {where}; nothing is replaced"
        print(with_code(text, code="torchrec-part-missing"), file=sys.stderr)
        return
    _originals[owner, name] = original
    setattr(owner, name, functools.wraps(original)(wrap(original)))


def _with_plan_cache(plans: PlanCache) -> Any:
    def collective(self: Any, module: Any, sharders: Any = None, pg: Any = None) -> Any:
        return collective_plan(self, module, sharders, pg, plans=plans)

    return collective


def _without_gathers(original: Callable[..., None]) -> Any:
    def initialize(self: Any, *args: Any, **kwargs: Any) -> None:
        gather = ShardedTensor.__dict__[INIT]
        names: dict[int, str] = {}

        def init(cls: Any, local_shards: Any, *size: Any, **options: Any) -> Any:
            # Identified by the list itself: a rank without a shard has no other information.
            if not names:
                local_shards_by_name = self._model_parallel_name_to_local_shards
                names.update((id(shards), name) for name, shards in local_shards_by_name.items())
            metadata = _tensor_metadata(self, names.get(id(local_shards)))
            if metadata is None or options.get("init_rrefs"):
                return gather.__func__(cls, local_shards, *size, **options)
            return cls._init_from_local_shards_and_global_metadata(
                local_shards, metadata, process_group=options.get("process_group")
            )

        setattr(ShardedTensor, INIT, classmethod(init))
        try:
            original(self, *args, **kwargs)
        finally:
            setattr(ShardedTensor, INIT, gather)

    return initialize


def _tensor_metadata(collection: Any, name: str | None) -> ShardedTensorMetadata | None:
    """The metadata that would be gathered; None if the plan does not determine it.

    Decided by what is the same on all ranks: if one rank gathers, all must.
    """
    if name is None or isinstance(collection._env, TWO_DIMENSIONS):
        return None
    sharding = collection.module_sharding_plan[name]
    config = collection._table_name_to_config[name]
    spec = sharding.sharding_spec
    virtual = {kernel.value for kernel in EmbeddingComputeKernel if kernel.name in VIRTUAL}
    if config.use_virtual_table or sharding.compute_kernel in virtual:
        return None
    if type(spec) is not EnumerableShardingSpec:
        return None
    dtype = data_type_to_dtype(config.data_type)  # a rank without a shard has no tensor to ask
    return ShardedTensorMetadata(
        sorted(spec.shards, key=_rank),
        torch.Size(collection._name_to_table_size[name]),
        TensorProperties(dtype=dtype),
    )


def _rank(shard: Any) -> int:
    return int(shard.placement.rank())


def _modules(module: torch.nn.Module, sharders: Sequence[Any]) -> list[Any]:
    """Everything to be sharded, and everything else that takes memory."""
    kinds = {sharder.module_type for sharder in sharders}
    descriptions: list[Any] = []
    for tensors in (module.named_parameters(), module.named_buffers()):
        descriptions += [[name, list(tensor.shape), str(tensor.dtype)] for name, tensor in tensors]
    for path, child in module.named_modules():
        if type(child) in kinds:
            settings = [
                getattr(child, name)()
                for name in ("embedding_bag_configs", "embedding_configs", "is_weighted")
                if hasattr(child, name)
            ]
            descriptions.append(
                [f"the settings of {path!r}", describe_inputs([type(child), settings])]
            )
    return descriptions


def _versions() -> dict[str, str]:
    versions = {"torch": str(torch.__version__)}
    for name in ("torchrec", "fbgemm-gpu", "fbgemm-gpu-cpu", "headway"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def _difference(here: dict[str, Any], there: dict[str, Any]) -> str:
    for what in ("world_size", "versions"):
        if here[what] != there[what]:
            return f"{what} is {here[what]} here and {there[what]} there"
    ours, theirs = ({entry[0]: entry[1:] for entry in side["modules"]} for side in (here, there))
    for name in (*theirs, *ours):
        if ours.get(name) != theirs.get(name):
            return f"{name} {_brief(ours.get(name))} here and {_brief(theirs.get(name))} there"
    return "" if here == there else "the order of the modules"


def _brief(value: Any) -> str:
    if value is None:
        return "is not"
    text = " ".join(map(str, value))
    return f"is {text}" if len(text) < 80 else f"is {hashlib.sha256(text.encode()).hexdigest()[:8]}"
