"""torch.export and AOTInductor: code in a .pt2, and the weights in a separate file.

Code is compiled once per graph and works with any weights: a further snapshot of an unchanged model
needs no compilation. To serve without Headway:

    model = torch._inductor.aoti_load_package("model.pt2")
    model.load_constants(safetensors.torch.load_file("weights.safetensors"), ...)
"""

from __future__ import annotations

import hashlib
import platform
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch._inductor
import torch.utils._pytree as pytree
from torch import Tensor
from torch.export import Dim, ExportedProgram

from headway.errors import PublishFailed, UsageError
from headway.publish import safetensors_io
from headway.publish.failures import describe_error, raise_if_transient
from headway.publish.targets.base import SnapshotContent, Work

PACKAGE, CONSTANTS = "model.pt2", "constants.safetensors"
# Otherwise small constants are compiled into the code, which is wrong for other weights.
SETTINGS = {"aot_inductor.package_constants_in_so": False, "always_keep_tensor_constants": True}


@dataclass(frozen=True)
class Aoti:
    """Served by torch alone, without the code of the model."""

    tolerance: float = 1e-4

    def make(self, work: Work) -> list[str]:
        """Compile the graph, unless compiled code exists."""
        program = export_program(work)
        _check_names(program)
        path = work.folder / PACKAGE
        signature = graph_signature(program)
        if not work.packages.get(signature, path):
            _compile(program, str(path))
            work.packages.put(signature, path)
        constants = {n: t for n, t in program.constants.items() if isinstance(t, Tensor)}
        if not constants:
            return [PACKAGE]
        with (work.folder / CONSTANTS).open("wb") as file:
            for piece in safetensors_io.pieces(constants):
                file.write(piece)
        return [PACKAGE, CONSTANTS]

    def open(self, content: SnapshotContent) -> Callable[..., Any]:
        """Load the code, with the weights mapped from the file."""
        stored_constants = (
            safetensors_io.read(content.files[CONSTANTS]) if CONSTANTS in content.files else {}
        )
        constants = {**content.weights, **stored_constants}
        package = torch._inductor.aoti_load_package(str(content.files[PACKAGE]))
        names = package.get_constant_fqns()
        missing = set(names) - constants.keys()
        if missing:
            raise PublishFailed(
                f"the code needs the weight {min(missing)}, which does not exist",
                code="weight-missing",
            )
        return _LoadedPackage(package, {name: _align(constants[name]) for name in names})


def _align(tensor: Tensor) -> Tensor:
    """Align a tensor for compiled vector code; copies unaligned tensors."""
    return tensor if tensor.data_ptr() % safetensors_io.ALIGNMENT == 0 else tensor.clone()


class _LoadedPackage:
    """Compiled code with references to its weights."""

    def __init__(self, package: Any, weights: Mapping[str, Tensor]) -> None:
        self._package, self._weights = package, weights
        package.load_constants(dict(weights), check_full_update=True, user_managed=True)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._package(*args, **kwargs)


def export_program(work: Work) -> ExportedProgram:
    """Export the graph of the model; UsageError if torch.export fails."""
    inputs = work.inputs
    shapes: Any = None
    if work.batch:
        free = lambda tensor: {0: Dim.AUTO} if tensor.dim() else None  # noqa: E731
        shapes = pytree.tree_map_only(Tensor, free, inputs.kwargs or inputs.args)
    kwargs = dict(inputs.kwargs or {})
    try:
        program = torch.export.export(
            work.model, inputs.args, kwargs, dynamic_shapes=shapes, strict=False
        )
    except Exception as error:  # of user code, of any kind
        raise_if_transient(
            f"torch.export cannot export the model now: {describe_error(error)}", error
        )
        raise UsageError(
            f"torch.export cannot export the model: {describe_error(error)}",
            code="model-not-exportable",
        ) from error
    if work.batch and not _has_free_dimension(program):
        raise UsageError(
            "the model works only for one batch size; set batch = false in [golden], "
            "or change the model",
            code="batch-size-fixed",
        )
    return program


def _has_free_dimension(program: ExportedProgram) -> bool:
    values = [node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"]
    return any(
        isinstance(s, torch.SymInt) for v in values if isinstance(v, Tensor) for s in v.shape
    )


def _check_names(program: ExportedProgram) -> None:
    objects = [
        name for name, constant in program.constants.items() if not isinstance(constant, Tensor)
    ]
    if objects:
        raise UsageError(
            f"the model uses the object {objects[0]}, which a .pt2 cannot contain",
            code="model-has-objects",
        )


def graph_signature(program: ExportedProgram) -> str:
    """Hash of what compiled code depends on: graph, torch and machine, but not weights."""
    parts = [torch.__version__, platform.machine(), torch.backends.cpu.get_cpu_capability()]
    parts += [repr(sorted(SETTINGS.items())), str(program.graph_signature)]
    parts.append(repr(sorted((str(k), str(v)) for k, v in program.range_constraints.items())))
    parts.append(str(program.call_spec))
    for _, module in program.graph_module.named_modules():
        if isinstance(module, torch.fx.GraphModule):
            parts.append(module.code)
            parts += [f"{node.name} {node.meta.get('val')}" for node in module.graph.nodes]
    state = {**program.state_dict, **program.constants}
    parts += [f"{n} {t.dtype} {list(t.shape)} {t.stride()}" for n, t in sorted(state.items())]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def _compile(program: ExportedProgram, path: str) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # internal to torch
            torch._inductor.aoti_compile_and_package(
                program, package_path=path, inductor_configs=dict(SETTINGS)
            )
    except Exception as error:
        raise_if_transient(
            f"AOTInductor cannot compile the model now: {describe_error(error)}", error
        )
        raise PublishFailed(
            f"AOTInductor cannot compile the model: {describe_error(error)}",
            code="model-not-compilable",
        ) from error
