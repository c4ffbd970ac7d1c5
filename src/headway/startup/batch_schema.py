"""Describe batches: containers, types, sizes and value ranges, but no content."""

from __future__ import annotations

import importlib
import json
from collections import namedtuple
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from headway.errors import HeadwayError, Reason

VERSION = 1
UNLIMITED = 1 << 62  # upper bound of a size that is marked as dynamic
PLAIN_TYPES = (bool, int, float, str, type(None))


class SchemaError(HeadwayError):
    """Batches that differ in structure or type, or that cannot be described."""


@dataclass(frozen=True, kw_only=True)
class Dim:
    """The smallest, largest and usual size of a dimension."""

    low: int
    high: int
    usual: int

    @property
    def fixed(self) -> bool:
        return self.low == self.high


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """A tensor or plain value of the batch."""

    path: str
    dtype: str = ""
    dims: tuple[Dim, ...] = ()
    order: tuple[int, ...] = ()  # dimensions from the widest stride to the narrowest
    requires_grad: bool = False
    low: float = 0.0  # smallest and largest value
    high: float = 0.0
    # How it divides the first dimension of another tensor into rows: "offsets" (including the
    # end), "starts" (without it) or "lengths".
    jagged: str = ""
    of: str = ""  # the path of that tensor
    value: Any = None  # if it is not a tensor

    @property
    def is_tensor(self) -> bool:
        return bool(self.dtype)


@dataclass(frozen=True, kw_only=True)
class Schema:
    """The leaves of a batch, and its containers as described by torch's pytree."""

    spec: str
    leaves: tuple[Leaf, ...]
    kinds: tuple[str, ...] = ()  # named tuples among the containers
    batches: int = 1  # how many it was learned from
    version: int = field(default=VERSION)

    @classmethod
    def learn(cls, *batches: Any) -> Schema:
        """Learn from batches; sizes that differ between them are dynamic."""
        if not batches:
            raise SchemaError("a schema needs at least one batch", code="schema-without-batch")
        learned = [_schema_of(batch) for batch in batches]
        schema = learned[0]
        for other in learned[1:]:
            schema = schema.join(other)
        return schema

    def join(self, other: Schema) -> Schema:
        """A schema of the batches of both."""
        if self.spec != other.spec:
            raise SchemaError(
                "the batches have different structures: their containers differ",
                code="batch-containers-differ",
            )
        leaves = tuple(_join_leaves(a, b) for a, b in zip(self.leaves, other.leaves, strict=True))
        return replace(self, leaves=leaves, batches=self.batches + other.batches)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Schema:
        """Read a schema; SchemaError if it is damaged or has another version."""
        try:
            content = json.loads(text)
            if content["version"] != VERSION:
                raise SchemaError(
                    f"the schema has version {content['version']}, expected {VERSION}",
                    code="schema-other-version",
                )
            leaves = tuple(_read_leaf(leaf) for leaf in content.pop("leaves"))
            return cls(leaves=leaves, **{**content, "kinds": tuple(content["kinds"])})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SchemaError(
                f"the schema cannot be read: {error}", code="schema-not-readable"
            ) from None

    def differences(self, batch: Any) -> list[Reason]:
        """How a batch differs from the schema, apart from sizes that are dynamic."""
        other = _schema_of(batch)
        if other.spec != self.spec:
            return [Reason("its containers differ", code="batch-containers-differ")]
        reasons: list[Reason] = []
        for expected, actual in zip(self.leaves, other.leaves, strict=True):
            reasons += _differences(expected, actual)
        return reasons


def _schema_of(batch: Any) -> Schema:
    paths, spec = pytree.tree_flatten_with_path(batch)
    values_by_path = {pytree.keystr(path) or "batch": value for path, value in paths}
    for path, value in values_by_path.items():
        if not isinstance(value, (torch.Tensor, *PLAIN_TYPES)):
            kind = type(value).__name__
            raise SchemaError(
                f"{path} is a {kind}, which torch's pytree does not support",
                code="batch-value-unsupported",
            )
    leaves = tuple(_describe(path, value, values_by_path) for path, value in values_by_path.items())
    kinds = tuple(dict.fromkeys(_namedtuples(spec)))
    for kind in kinds:
        register_namedtuple(kind)
    try:
        spec_json = pytree.treespec_dumps(spec)
    except NotImplementedError as error:
        raise SchemaError(
            f"the batch has a container that cannot be serialized: {error}",
            code="batch-container-unsupported",
        ) from None
    return Schema(spec=spec_json, leaves=leaves, kinds=kinds)


def _namedtuples(spec: Any) -> Iterator[str]:
    """Yield the named tuples of a batch, as `module:name`."""
    if spec.type is namedtuple:
        yield f"{spec.context.__module__}:{spec.context.__qualname__}"
    for child in spec.children() if hasattr(spec, "children") else spec.children_specs:
        yield from _namedtuples(child)


def register_namedtuple(kind: str) -> None:
    """Register a named tuple for serialization with torch's pytree."""
    module, _, name = kind.partition(":")
    try:
        named_tuple: Any = importlib.import_module(module)
        for part in name.split("."):
            named_tuple = getattr(named_tuple, part)
    except (ImportError, AttributeError):
        raise SchemaError(
            f"the batch has a {name}, which does not exist in {module}", code="batch-type-not-found"
        ) from None
    if named_tuple not in pytree.SUPPORTED_SERIALIZED_TYPES:
        pytree._register_namedtuple(named_tuple, serialized_type_name=kind)


def _describe(path: str, value: Any, values_by_path: Mapping[str, Any]) -> Leaf:
    if not isinstance(value, torch.Tensor):
        return Leaf(path=path, value=value)
    marked = _marked_dimensions(value)
    dims = tuple(
        Dim(low=0, high=UNLIMITED, usual=size)
        if place in marked
        else Dim(low=size, high=size, usual=size)
        for place, size in enumerate(value.shape)
    )
    order = tuple(range(value.dim()))
    if not value.is_contiguous():
        strides = value.stride()
        order = tuple(sorted(order, key=lambda place: (-strides[place], place)))
    low, high = _range(value)
    jagged, of = _jagged(path, value, values_by_path)
    return Leaf(
        path=path,
        dtype=str(value.dtype).removeprefix("torch."),
        dims=dims,
        order=order,
        requires_grad=value.requires_grad,
        low=low,
        high=high,
        jagged=jagged,
        of=of,
    )


def _marked_dimensions(value: torch.Tensor) -> set[int]:
    """Dimensions that the user marked as dynamic."""
    names = ("_dynamo_dynamic_indices", "_dynamo_weak_dynamic_indices", "_dynamo_unbacked_indices")
    return {place for name in names for place in getattr(value, name, ())}


def _range(value: torch.Tensor) -> tuple[float, float]:
    if not value.numel() or value.is_complex():
        return 0.0, 0.0
    values = value.detach().float() if value.is_floating_point() else value.detach()
    finite = values[torch.isfinite(values)] if value.is_floating_point() else values
    if not finite.numel():
        return 0.0, 0.0
    return float(finite.min()), float(finite.max())


def _jagged(path: str, value: torch.Tensor, values_by_path: Mapping[str, Any]) -> tuple[str, str]:
    """Whether the values divide another tensor into rows, and which one."""
    if value.dim() != 1 or value.numel() < 2 or value.is_floating_point() or value.is_complex():
        return "", ""
    if value.dtype == torch.bool:
        return "", ""
    numbers = value.detach().cpu()
    rises = bool(numbers[0] == 0 and (numbers[1:] >= numbers[:-1]).all())
    total, last = int(numbers.sum()), int(numbers[-1])
    others = {
        other: tensor.shape[0]
        for other, tensor in values_by_path.items()
        if other != path and isinstance(tensor, torch.Tensor) and tensor.dim() and tensor.shape[0]
    }
    for other, rows in others.items():
        if rises and rows == last:
            return "offsets", other
        if total == rows and bool((numbers >= 0).all()):
            return "lengths", other
    longer = [other for other, rows in others.items() if rises and last and rows > last]
    return ("starts", min(longer, key=others.__getitem__)) if longer else ("", "")


def _join_leaves(a: Leaf, b: Leaf) -> Leaf:
    if a.is_tensor != b.is_tensor or a.dtype != b.dtype or len(a.dims) != len(b.dims):
        raise SchemaError(
            f"{a.path} has different types in different batches", code="batch-types-differ"
        )
    if not a.is_tensor:
        return a
    dims = tuple(
        Dim(low=min(x.low, y.low), high=max(x.high, y.high), usual=max(x.usual, y.usual))
        for x, y in zip(a.dims, b.dims, strict=True)
    )
    jagged = _join_jagged(a, b)
    return replace(
        a,
        dims=dims,
        low=min(a.low, b.low),
        high=max(a.high, b.high),
        requires_grad=a.requires_grad or b.requires_grad,
        jagged=jagged[0],
        of=jagged[1],
    )


def _join_jagged(a: Leaf, b: Leaf) -> tuple[str, str]:
    """How both are jagged; offsets look like starts if the last row of a batch is empty."""
    kinds = {a.jagged, b.jagged}
    if a.of != b.of or "" in kinds or ("lengths" in kinds and len(kinds) > 1):
        return "", ""
    return (a.jagged if len(kinds) == 1 else "starts"), a.of


def _differences(expected: Leaf, actual: Leaf) -> list[Reason]:
    if expected.dtype != actual.dtype:
        text = (
            f"{expected.path} is {actual.dtype or 'no tensor'}, not {expected.dtype or 'a value'}"
        )
        return [Reason(text, code="batch-types-differ")]
    if len(expected.dims) != len(actual.dims):
        text = f"{expected.path} has {len(actual.dims)} dimensions, not {len(expected.dims)}"
        return [Reason(text, code="batch-dimensions-differ")]
    reasons = []
    for place, (expected_dim, actual_dim) in enumerate(
        zip(expected.dims, actual.dims, strict=True)
    ):
        if expected_dim.fixed and actual_dim.low != expected_dim.low:
            sizes = f"size {actual_dim.low} in dimension {place}, not {expected_dim.low}"
            text = f"{expected.path} has {sizes}"
            reasons.append(Reason(text, code="batch-sizes-differ"))
    if len(expected.dims) > 1 and expected.order != actual.order:
        text = f"{expected.path} has another memory layout"
        reasons.append(Reason(text, code="batch-strides-differ"))
    if expected.requires_grad != actual.requires_grad:
        requires = "requires" if actual.requires_grad else "does not require"
        text = f"{expected.path} {requires} a gradient"
        reasons.append(Reason(text, code="batch-gradients-differ"))
    return reasons


def _read_leaf(fields: Mapping[str, Any]) -> Leaf:
    dims = tuple(Dim(**dim) for dim in fields["dims"])
    return Leaf(**{**fields, "dims": dims, "order": tuple(fields["order"])})
