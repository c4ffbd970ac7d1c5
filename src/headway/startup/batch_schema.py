"""Describe batches: containers, types, sizes and ranges, and none of their content."""

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
UNLIMITED = 1 << 62  # of a size that is marked as dynamic
PLAIN_TYPES = (bool, int, float, str, type(None))


class SchemaError(HeadwayError):
    """Batches that are not of one kind, or of a kind that cannot be told."""


@dataclass(frozen=True, kw_only=True)
class Dim:
    """A size: the smallest and the largest that was seen, and one in the middle."""

    low: int
    high: int
    usual: int

    @property
    def fixed(self) -> bool:
        """Whether it never changed."""
        return self.low == self.high


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """A tensor of the batch, or a plain value."""

    path: str
    dtype: str = ""
    dims: tuple[Dim, ...] = ()
    order: tuple[int, ...] = ()  # dimensions from the widest stride to the narrowest
    requires_grad: bool = False
    low: float = 0.0  # smallest and largest value
    high: float = 0.0
    # How it cuts the first dimension of another tensor into rows: "offsets" (with the end),
    # "starts" (without it) or "lengths".
    jagged: str = ""
    of: str = ""  # the path of that tensor
    value: Any = None  # what is there, if it is no tensor

    @property
    def is_tensor(self) -> bool:
        """Whether it is one."""
        return bool(self.dtype)


@dataclass(frozen=True, kw_only=True)
class Schema:
    """All leaves of a batch, and the containers around them as torch's pytree tells them."""

    spec: str
    leaves: tuple[Leaf, ...]
    kinds: tuple[str, ...] = ()  # named tuples among the containers
    batches: int = 1  # how many it was learned from
    version: int = field(default=VERSION)

    @classmethod
    def learn(cls, *batches: Any) -> Schema:
        """Learned from batches; what differs between them is dynamic."""
        if not batches:
            raise SchemaError("a schema needs at least one batch", code="schema-without-batch")
        learned = [_schema_of(batch) for batch in batches]
        schema = learned[0]
        for other in learned[1:]:
            schema = schema.join(other)
        return schema

    def join(self, other: Schema) -> Schema:
        """Of the batches of both."""
        if self.spec != other.spec:
            raise SchemaError(
                "the batches are not of one structure: their containers differ",
                code="batch-containers-differ",
            )
        leaves = tuple(_join_leaves(a, b) for a, b in zip(self.leaves, other.leaves, strict=True))
        return replace(self, leaves=leaves, batches=self.batches + other.batches)

    def to_json(self) -> str:
        """As it is kept."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Schema:
        """As it was kept; of another version it is of no use."""
        try:
            content = json.loads(text)
            if content["version"] != VERSION:
                raise SchemaError(
                    f"the schema is of version {content['version']}, not {VERSION}",
                    code="schema-other-version",
                )
            leaves = tuple(_read_leaf(leaf) for leaf in content.pop("leaves"))
            return cls(leaves=leaves, **{**content, "kinds": tuple(content["kinds"])})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SchemaError(
                f"the schema cannot be read: {error}", code="schema-not-readable"
            ) from None

    def differences(self, batch: Any) -> list[Reason]:
        """In what a batch is not of this schema, sizes within the seen ranges aside."""
        other = _schema_of(batch)
        if other.spec != self.spec:
            return [Reason("its containers are others", code="batch-containers-differ")]
        reasons: list[Reason] = []
        for mine, theirs in zip(self.leaves, other.leaves, strict=True):
            reasons += _differences(mine, theirs)
        return reasons


def _schema_of(batch: Any) -> Schema:
    paths, spec = pytree.tree_flatten_with_path(batch)
    values_by_path = {pytree.keystr(path) or "batch": value for path, value in paths}
    for path, value in values_by_path.items():
        if not isinstance(value, (torch.Tensor, *PLAIN_TYPES)):
            kind = type(value).__name__
            raise SchemaError(
                f"{path} is a {kind}, which torch's pytree cannot take apart",
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
            f"the batch has a container that cannot be kept: {error}",
            code="batch-container-unsupported",
        ) from None
    return Schema(spec=spec_json, leaves=leaves, kinds=kinds)


def _namedtuples(spec: Any) -> Iterator[str]:
    """The named tuples of a batch, as `module:name`."""
    if spec.type is namedtuple:
        yield f"{spec.context.__module__}:{spec.context.__qualname__}"
    for child in spec.children() if hasattr(spec, "children") else spec.children_specs:
        yield from _namedtuples(child)


def register_namedtuple(kind: str) -> None:
    """Let torch's pytree write down and read a named tuple."""
    module, _, name = kind.partition(":")
    try:
        named_tuple: Any = importlib.import_module(module)
        for part in name.split("."):
            named_tuple = getattr(named_tuple, part)
    except (ImportError, AttributeError):
        raise SchemaError(
            f"the batch has a {name}, which {module} does not have", code="batch-type-not-found"
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
    """The dimensions that somebody has said to be dynamic."""
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
    """Whether these numbers cut another tensor into rows."""
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
        raise SchemaError(f"{a.path} is not of one type in all batches", code="batch-types-differ")
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
    """How both are jagged; a batch whose last row is empty looks as if it had no end."""
    kinds = {a.jagged, b.jagged}
    if a.of != b.of or "" in kinds or ("lengths" in kinds and len(kinds) > 1):
        return "", ""
    return (a.jagged if len(kinds) == 1 else "starts"), a.of


def _differences(mine: Leaf, theirs: Leaf) -> list[Reason]:
    if mine.dtype != theirs.dtype:
        text = f"{mine.path} is {theirs.dtype or 'no tensor'}, not {mine.dtype or 'a value'}"
        return [Reason(text, code="batch-types-differ")]
    if len(mine.dims) != len(theirs.dims):
        text = f"{mine.path} has {len(theirs.dims)} dimensions, not {len(mine.dims)}"
        return [Reason(text, code="batch-dimensions-differ")]
    reasons = []
    for place, (our_dim, their_dim) in enumerate(zip(mine.dims, theirs.dims, strict=True)):
        if our_dim.fixed and their_dim.low != our_dim.low:
            text = (
                f"{mine.path} has the size {their_dim.low} in dimension {place}, not {our_dim.low}"
            )
            reasons.append(Reason(text, code="batch-sizes-differ"))
    if len(mine.dims) > 1 and mine.order != theirs.order:
        text = f"{mine.path} lies in memory in another order"
        reasons.append(Reason(text, code="batch-strides-differ"))
    if mine.requires_grad != theirs.requires_grad:
        text = f"{mine.path} {'wants' if theirs.requires_grad else 'wants no'} gradient"
        reasons.append(Reason(text, code="batch-gradients-differ"))
    return reasons


def _read_leaf(fields: Mapping[str, Any]) -> Leaf:
    dims = tuple(Dim(**dim) for dim in fields["dims"])
    return Leaf(**{**fields, "dims": dims, "order": tuple(fields["order"])})
