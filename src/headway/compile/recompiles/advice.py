"""Explain a run's recompiles and derive the settings that avoid them: pure functions, no torch.

The sources to mark as dynamic are the union of what failed guards name and what torch's own lattice
of shapes records. Each alone misses some: a guard names only the first difference, and the lattice
ends where torch stopped compiling.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headway.compile.recompiles import sources
from headway.compile.recompiles.guards import Guard, parse
from headway.compile.recompiles.kinds import KINDS
from headway.compile.recompiles.record import Recompile, Record
from headway.compile.recompiles.sources import DYNAMIC, SETTINGS, UNBACKED, VALUES, Source

RESUME_FUNCTION = re.compile(r"torch_dynamo_resume_in_(.+)_at_(\d+)")
WRAPPER_FILE = "/torch/_dynamo/external_utils.py:"  # torch's wrapper around its own modules
MAX_VALUES = 8  # per cause
MAX_STEPS = 100
SPECIAL_SIZES = frozenset({"0", "1"})  # torch specializes on these sizes, even if dynamic


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """All recompiles of one place because of one change of one input."""

    kind: str
    where: str  # file:line name of the compiled function
    source: str = ""  # with its scope; empty if no input caused it
    dim: int | None = None
    values: tuple[str, ...] = ()  # observed values, in order
    count: int = 0  # on the rank with the most
    ns: int = 0  # on the rank with the largest sum
    ranks: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()  # steps completed before each recompile, on any rank
    caller: str = ""
    line: str = ""  # of the user's code that the guard is for
    reason: str = ""
    cure: str = ""
    code_line: str = ""  # has the same effect as the setting


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitHit:
    """torch reached its recompile limit: from then on the place runs uncompiled."""

    where: str
    limit: str
    ranks: tuple[int, ...]
    step: int | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What a run's recompiles cost, why they happened, and which settings avoid them."""

    torch: str | None
    recompiles: int  # on the rank that has most of them
    ns: int  # on the rank that lost most
    graphs: int
    compile_ns: int
    causes: tuple[Cause, ...]  # most expensive first
    limit_hits: tuple[LimitHit, ...]
    dynamic: tuple[Source, ...]
    unbacked: tuple[Source, ...]
    env: Mapping[str, str] = field(default_factory=dict)  # including what was already set
    has_new_settings: bool = False  # `env` has more than was already set
    last_step: int | None = None  # steps completed at the last recompile

    def to_dict(self) -> dict[str, Any]:
        """The output of `headway recompiles --json`."""
        return {
            "schema": 1,
            "torch": self.torch,
            "recompiles": self.recompiles,
            "seconds": self.ns / 1e9,
            "graphs": self.graphs,
            "compile_seconds": self.compile_ns / 1e9,
            "env": dict(self.env),
            "dynamic": [str(source) for source in self.dynamic],
            "unbacked": [str(source) for source in self.unbacked],
            "causes": [_cause_to_dict(cause) for cause in self.causes],
            "storms": [
                {
                    "where": hit.where,
                    "limit": hit.limit,
                    "ranks": list(hit.ranks),
                    "step": hit.step,
                    "reason": hit.reason,
                }
                for hit in self.limit_hits
            ],
        }


def _cause_to_dict(cause: Cause) -> dict[str, Any]:
    return {
        "kind": cause.kind,
        "title": KINDS[cause.kind].title,
        "where": cause.where,
        "source": cause.source,
        "dim": cause.dim,
        "values": list(cause.values),
        "times": cause.count,
        "seconds": cause.ns / 1e9,
        "ranks": list(cause.ranks),
        "steps": list(cause.steps),
        "caller": cause.caller,
        "line": cause.line,
        "reason": cause.reason,
        "cure": cause.cure,
        "mark": cause.code_line,
    }


def advise(record: Record) -> Advice:
    """Find the causes of a run's recompiles and the settings that avoid them."""
    full_names = {sources.without_scope(source): source for source in record.lattice}
    compiled = [recompile for recompile in record.recompiles if not recompile.limit]
    steps = [recompile.step for recompile in record.recompiles if recompile.step is not None]
    marks = find_marks(record, full_names)
    return Advice(
        torch=record.torch,
        recompiles=_largest_rank_sum(compiled, lambda recompile: 1),
        ns=_largest_rank_sum(compiled, lambda recompile: recompile.ns),
        graphs=record.graphs,
        compile_ns=record.ns,
        causes=tuple(_causes(record.recompiles, full_names)),
        limit_hits=tuple(_limit_hits(record.recompiles)),
        dynamic=marks.dynamic,
        unbacked=marks.unbacked,
        env=marks.env,
        has_new_settings=marks.has_new_settings,
        last_step=max(steps, default=None),
    )


def _causes(recompiles: Iterable[Recompile], full_names: Mapping[str, str]) -> list[Cause]:
    groups: dict[tuple[str, Source, str], list[tuple[Recompile, Guard]]] = {}
    guards = [(recompile, _failed_guard(recompile)) for recompile in recompiles]
    pinned = {
        (recompile.where, guard.source) for recompile, guard in guards if guard.kind == "pinned"
    }
    for recompile, guard in guards:
        inputs = KINDS[guard.kind].of_input and guard.source
        name = sources.with_scope(guard.source, full_names) if inputs else guard.source
        kind = "size" if guard.kind == "zero_one" else guard.kind
        if kind == "int" and (recompile.where, guard.source) in pinned:
            kind = "pinned"
        groups.setdefault((recompile.where, Source(name, guard.dim), kind), []).append(
            (recompile, guard)
        )
    causes = [
        _cause(kind, where, source, members) for (where, source, kind), members in groups.items()
    ]
    return sorted(causes, key=lambda cause: (-cause.ns, -cause.count, cause.where, cause.source))


def _failed_guard(recompile: Recompile) -> Guard:
    """The failed guard of the version that was used last, which is the most general one."""
    if recompile.reasons:
        return parse(recompile.reasons[0])
    return Guard("rebuilt" if recompile.rebuilt else "late")


def _cause(
    kind: str, where: str, source: Source, members: Sequence[tuple[Recompile, Guard]]
) -> Cause:
    recompiles = [recompile for recompile, _ in members]
    compiled = [recompile for recompile in recompiles if not recompile.limit]
    guard = members[0][1]
    values: dict[str, None] = {}
    for recompile, failed in members:
        values.update(dict.fromkeys((failed.expected, actual_value(failed, recompile))))
    values.pop("", None)
    if kind == "size" and values.keys() & SPECIAL_SIZES:
        kind = "zero_one"
    code = sources.spelling_in_code(source.name)
    cure = KINDS[kind].cure.format(code or "it", guard.expected or "the first one", guard.text)
    return Cause(
        kind=kind,
        where=where,
        source=source.name,
        dim=source.dim,
        values=tuple(values)[:MAX_VALUES],
        count=_largest_rank_sum(compiled, lambda recompile: 1),
        ns=_largest_rank_sum(compiled, lambda recompile: recompile.ns),
        ranks=tuple(sorted({recompile.rank for recompile in recompiles})),
        steps=tuple(
            sorted({recompile.step for recompile in recompiles if recompile.step is not None})
        )[:MAX_STEPS],
        caller=next((recompile.caller for recompile in recompiles if recompile.caller), ""),
        line=guard.line,
        reason=_short_reason(recompiles[0].reasons),
        cure=cure,
        code_line=_mark(kind, where, code, source.dim),
    )


def _mark(kind: str, where: str, code: str, dim: int | None) -> str:
    """The call that marks a tensor before the compiled call; impossible between two graphs."""
    calls = {
        "size": "torch._dynamo.mark_dynamic",
        "duck": "torch._dynamo.mark_dynamic",
        "zero_one": "torch._dynamo.decorators.mark_unbacked",
    }
    if dim is None or kind not in calls or RESUME_FUNCTION.search(where):
        return ""
    argument = re.match(r"args\[(\d+)\]", code) if WRAPPER_FILE in where else None
    remark = (
        f"  # args[{argument[1]}]: argument {int(argument[1]) + 1} of the call" if argument else ""
    )
    return f"{calls[kind]}({code}, {dim}){remark}"


def _limit_hits(recompiles: Iterable[Recompile]) -> Iterator[LimitHit]:
    by_place: dict[tuple[str, str], list[Recompile]] = {}
    for recompile in recompiles:
        if recompile.limit:
            by_place.setdefault((recompile.where, recompile.limit), []).append(recompile)
    for (where, limit), members in by_place.items():
        yield LimitHit(
            where=where,
            limit=limit,
            ranks=tuple(sorted({recompile.rank for recompile in members})),
            step=min(
                (recompile.step for recompile in members if recompile.step is not None),
                default=None,
            ),
            reason=_short_reason(members[0].reasons),
        )


def _short_reason(reasons: Sequence[str]) -> str:
    """The guard alone, without the code that torch appends."""
    return reasons[0].partition("\n")[0].partition("  #")[0].strip() if reasons else ""


def _largest_rank_sum(recompiles: Iterable[Recompile], measure: Callable[[Recompile], int]) -> int:
    """The sum on the rank where it is largest: ranks compile in parallel."""
    by_rank: dict[int, int] = {}
    for recompile in recompiles:
        by_rank[recompile.rank] = by_rank.get(recompile.rank, 0) + measure(recompile)
    return max(by_rank.values(), default=0)


@dataclass(frozen=True, slots=True)
class Marks:
    """Sources that change; `unbacked` are those with sizes that become 0 or 1."""

    dynamic: tuple[Source, ...] = ()
    unbacked: tuple[Source, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)  # including what was already set
    has_new_settings: bool = False  # `env` has more than that


def find_marks(record: Record, full_names: Mapping[str, str]) -> Marks:
    """Find the sources to mark; `full_names` maps plain names to full names that torch recorded."""
    if not record.recompiles:
        return Marks(env=_settings(record, [], [])[0])
    values: dict[Source, set[str]] = {}
    pinned, branched = set(), set()
    for recompile in record.recompiles:
        for guard in map(parse, recompile.reasons):
            name = sources.with_scope(guard.source, full_names)
            if guard.kind == "pinned":
                pinned.add((recompile.where, name))
            elif guard.kind == "branch":
                branched.add(Source(name, guard.dim))
    for recompile in record.recompiles:
        for guard in map(parse, recompile.reasons):
            for source, new_values in markable_sources(guard, recompile, full_names):
                if source.dim is not None or (recompile.where, source.name) not in pinned:
                    values.setdefault(source, set()).update(new_values)
    unmarkable = _unmarkable_names(record, full_names)
    for source in _changing_in_lattice(record):
        if source.dim is not None or source.name not in unmarkable:
            values.setdefault(source, set())
    unbacked = [
        source
        for source, new_values in values.items()
        # torch refuses unbacked sizes where the code branches on them.
        if source.dim is not None
        and new_values & SPECIAL_SIZES
        and source not in branched
        and not _owning_module(source)
    ]
    dynamic = [source for source in values if source not in unbacked]
    return Marks(tuple(dynamic), tuple(unbacked), *_settings(record, dynamic, unbacked))


def markable_sources(
    guard: Guard, recompile: Recompile, full_names: Mapping[str, str]
) -> Iterator[tuple[Source, set[str]]]:
    """Yield sources that a torch setting can mark, with the values that this guard names."""
    name = sources.with_scope(guard.source, full_names)
    if guard.kind in ("size", "parameter"):
        yield Source(name, guard.dim), {guard.expected, guard.actual}
    elif guard.kind == "zero_one":
        yield Source(name, guard.dim), {actual_value(guard, recompile) or "1"}
    elif guard.kind == "duck" and guard.other is not None:
        yield Source(name, guard.dim), set()
        yield Source(sources.with_scope(guard.other[0], full_names), guard.other[1]), set()
    elif guard.kind in ("int", "module_int"):
        yield Source(name), {guard.expected}


def actual_value(guard: Guard, recompile: Recompile) -> str:
    """The value at the failed call: from the guard, or as recorded by the probe."""
    if guard.actual or guard.source not in recompile.guard_values:
        return guard.actual
    value = recompile.guard_values[guard.source]
    if isinstance(value, list):
        dim = guard.dim
        return str(value[dim]) if dim is not None and dim < len(value) else ""
    if guard.kind in ("length", "keys"):
        match = re.search(r" of (\d+)$", str(value))
        return match[1] if match and guard.expected.isdecimal() else ""
    return str(value)


def _unmarkable_names(record: Record, full_names: Mapping[str, str]) -> set[str]:
    """Names that change but are not integers."""
    unmarkable_kinds = ("float", "pinned", "rank", "tensor_type", "type", "none", "constant")
    guards = (parse(reason) for recompile in record.recompiles for reason in recompile.reasons)
    names = {
        sources.with_scope(guard.source, full_names)
        for guard in guards
        if guard.kind in unmarkable_kinds
    }
    floats = {
        name
        for name, shapes in record.lattice.items()
        if any(isinstance(shape, float) for shape in shapes)
    }
    return names | floats


def _changing_in_lattice(record: Record) -> Iterator[Source]:
    """Sources that change, `?` in the lattice. The base of a view is implied by the view."""
    for name, shapes in record.lattice.items():
        if name.endswith("._base"):
            continue
        for shape in shapes:
            if isinstance(shape, list):
                yield from (Source(name, dim) for dim, size in enumerate(shape) if size == "?")
        if "?" in shapes and not any(isinstance(shape, (list, dict)) for shape in shapes):
            yield Source(name)


def _fixed_in_lattice(record: Record) -> Iterator[Source]:
    for name, shapes in record.lattice.items():
        newest = shapes[-1]
        size = newest.get("size") if isinstance(newest, dict) else newest
        if isinstance(size, list):
            yield from (Source(name, dim) for dim, length in enumerate(size) if length != "?")
        elif size != "?":
            yield Source(name)


def _owning_module(source: Source) -> str:
    """The module's parameters, if the source is one of them: the others change with it."""
    match = re.fullmatch(r"(.+\._parameters)\['[^']+'\]", source.name)
    return match[1] if match else ""


def _settings(
    record: Record, dynamic: Sequence[Source], unbacked: Sequence[Source]
) -> tuple[dict[str, str], bool]:
    """The settings for the user's torch, and whether they extend what was already set."""
    static = list(_fixed_in_lattice(record))
    settings: dict[str, str] = {}
    has_new = False
    for variable, sources_to_mark in ((DYNAMIC, dynamic), (UNBACKED, unbacked), (VALUES, [])):
        already_set = record.marked.get(SETTINGS[variable], "")
        uncovered = [
            source
            for source in sources_to_mark
            if not sources.is_covered(source, already_set, record.torch)
        ]
        added = sources.entries(
            [source for source in uncovered if not _owning_module(source)], static, record.torch
        )
        for source in uncovered:
            if _owning_module(source):
                added.append(sources.any_key(_owning_module(source), source.dim, record.torch))
        if added or already_set:
            settings[variable] = sources.join(already_set, added)
        has_new = has_new or bool(added)
    return settings, has_new
