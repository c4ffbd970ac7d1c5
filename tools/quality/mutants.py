"""Mutants: a seeded sample of them, and finding a stored mutant again in changed source.

A mutant is stored as text (function, line, mutated line), not as a position, so that it can be
applied after its code was moved. cosmic-ray makes the mutations; it is needed for sampling only.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tools.quality.packages import package_of

ARITHMETIC = "Add|Sub|Mul|Div|FloorDiv|Mod"
BITWISE = "BitAnd|BitOr|BitXor|LShift|RShift"
# Without `is` for `==`, which is the same for None, and without what is a TypeError at once.
OPERATORS = re.compile(
    rf"ReplaceBinaryOperator_(({ARITHMETIC})_({ARITHMETIC})|({BITWISE})_({BITWISE}))"
    r"|ReplaceComparisonOperator_(?!(Is|Eq)_(Eq|Is)$|(IsNot|NotEq)_(NotEq|IsNot)$)\w+"
    r"|ReplaceUnaryOperator_(USub_UAdd|UAdd_USub|Delete_Not)"
    r"|AddNot|ExceptionReplacer|NumberReplacer|Replace[A-Za-z]+With[A-Za-z]+|ZeroIterationForLoop"
)
# Calls whose arguments are text for people.
MESSAGES = {"critical", "debug", "error", "exception", "info", "log", "note", "warn", "warning"}
MIN_UNIQUE_TOKENS = 6  # shorter lines, such as `if not rows:`, occur in unrelated functions


@dataclass(frozen=True)
class Mutant:
    """One line of one function, and the line that takes its place."""

    module: str
    function: str
    line: str
    mutated: str
    operator: str
    nth: int = 0  # among equal lines of the function
    lineno: int = 0  # for the reader only


@dataclass(frozen=True)
class Renames:
    """Where code went: paths of modules or folders, identifiers, and single mutants by hand."""

    modules: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    mutants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def module(self, path: str) -> str:
        candidates = [old for old in self.modules if f"{path}/".startswith(f"{old.rstrip('/')}/")]
        if not candidates:
            return path
        old = max(candidates, key=len)
        return self.modules[old].rstrip("/") + path[len(old.rstrip("/")) :]

    def text(self, text: str) -> str:
        return re.sub(r"[A-Za-z_]\w*", lambda word: self.names.get(word[0], word[0]), text)

    def apply(self, mutant: Mutant) -> Mutant:
        return Mutant(
            self.module(mutant.module),
            self.text(mutant.function),
            self.text(mutant.line),
            self.text(mutant.mutated),
            mutant.operator,
            mutant.nth,
            mutant.lineno,
        )


# Placing


@dataclass(frozen=True)
class Match:
    """Where the tokens of a line are in a module."""

    module: str
    function: str
    lineno: int
    spans: tuple[tuple[int, int], ...]


def tokens(text: str) -> list[re.Match[str]]:
    """Words and punctuation, without trailing commas: the same before and after a reformat."""
    return list(re.finditer(r"\w+|(?!,\s*([)\]}]|$))[^\w\s]", text))


def scopes(source: str) -> dict[int, str]:
    """The innermost function or class of each line, by its qualified name."""
    names: dict[int, str] = {}

    def visit(node: ast.AST, outer: str) -> None:
        for child in ast.iter_child_nodes(node):
            name = outer
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                name = f"{outer}.{child.name}" if outer else child.name
                for lineno in range(child.lineno, (child.end_lineno or child.lineno) + 1):
                    names[lineno] = name
            visit(child, name)

    visit(ast.parse(source), "")
    return names


def find(module: str, source: str, line: str) -> Iterator[Match]:
    """All places of a module with the tokens of that line, in their order."""
    wanted = [token[0] for token in tokens(line)]
    present = tokens(source)
    words = [token[0] for token in present]
    names: dict[int, str] | None = None
    for start, word in enumerate(words):
        if word == wanted[0] and words[start : start + len(wanted)] == wanted:
            names = scopes(source) if names is None else names
            spans = tuple(token.span() for token in present[start : start + len(wanted)])
            lineno = source.count("\n", 0, spans[0][0]) + 1
            yield Match(module, names.get(lineno, ""), lineno, spans)


def substitute(source: str, match: Match, line: str, mutated: str) -> str:
    """The source with the tokens by which the mutated line differs."""
    old, new = tokens(line), tokens(mutated)
    shortest = min(len(old), len(new))
    first = 0
    while first < shortest and old[first][0] == new[first][0]:
        first += 1
    last = 0
    while last < shortest - first and old[-1 - last][0] == new[-1 - last][0]:
        last += 1
    # From the end of the last equal token to the start of the next, with the spaces between.
    start = match.spans[first - 1][1] if first else match.spans[0][0]
    end = match.spans[-last][0] if last else match.spans[-1][1]
    new_start = new[first - 1].end() if first else new[0].start()
    new_end = new[-last].start() if last else new[-1].end()
    return source[:start] + mutated[new_start:new_end] + source[end:]


def place(mutant: Mutant, sources: Mapping[str, str]) -> tuple[Mutant, str] | None:
    """The mutant where it is now, and its module's mutated source; None if it cannot be placed.

    It is searched for in its function, then in a function of that name anywhere, then by its
    line. A search that has several answers in different functions has none.
    """
    name = mutant.function.rpartition(".")[2]
    matches: list[Match] = []
    if mutant.module in sources:
        matches = list(find(mutant.module, sources[mutant.module], mutant.line))
    chosen = _choose([m for m in matches if m.function == mutant.function], mutant.nth)
    if chosen is None:
        everywhere = [m for path in sources for m in find(path, sources[path], mutant.line)]
        searches = [
            [m for m in everywhere if m.function == mutant.function],
            [m for m in everywhere if m.function.rpartition(".")[2] == name],
            matches,
            everywhere if len(tokens(mutant.line)) >= MIN_UNIQUE_TOKENS else [],
        ]
        results = (_choose(search, mutant.nth) for search in searches)
        chosen = next((match for match in results if match is not None), None)
    if chosen is None:
        return None
    source = sources[chosen.module]
    mutated = substitute(source, chosen, mutant.line, mutant.mutated)
    try:
        if ast.dump(ast.parse(mutated)) == ast.dump(ast.parse(source)):
            return None
    except SyntaxError:
        return None
    placed = Mutant(
        chosen.module,
        chosen.function,
        mutant.line,
        mutant.mutated,
        mutant.operator,
        mutant.nth,
        chosen.lineno,
    )
    return placed, mutated


def _choose(matches: list[Match], nth: int) -> Match | None:
    if len({(match.module, match.function) for match in matches}) != 1:
        return None
    if len(matches) == 1:
        return matches[0]
    return matches[nth] if nth < len(matches) else None


# Sampling


def sample(
    sources: Mapping[str, str], sizes: Mapping[str, int], seed: int
) -> dict[str, list[Mutant]]:
    """That many mutants of each package; `sources` has the text of every module by its path.

    A module is drawn by its length, a line of it evenly among those that can be mutated, and a
    kind of operator evenly among those of the line: an operator with many variants, such as the
    replacement of `+`, is no more likely than one with a single variant.
    """
    chosen: dict[str, list[Mutant]] = {}
    candidates: dict[str, list[Candidate]] = {}
    for package, size in sizes.items():
        draw = random.Random(f"{seed} {package}")
        modules = [path for path in sorted(sources) if package_of(path) == package]
        weights = [sources[path].count("\n") for path in modules]
        mutants: list[Mutant] = []
        functions: set[tuple[str, str]] = set()  # one mutant of each, so that the sample spreads
        for _ in range(200 * size):
            if len(mutants) == size:
                break
            path = draw.choices(modules, weights)[0]
            if path not in candidates:
                candidates[path] = list(find_candidates(sources[path]))
            if not candidates[path]:
                continue
            lineno = draw.choice(sorted({c.lineno for c in candidates[path]}))
            kinds: dict[str, list[Candidate]] = {}
            for candidate in candidates[path]:
                if candidate.lineno == lineno:
                    kinds.setdefault(candidate.operator.partition("_")[0], []).append(candidate)
            candidate = draw.choice(kinds[draw.choice(sorted(kinds))])
            mutant = mutate(path, sources[path], candidate)
            if mutant is None:
                candidates[path].remove(candidate)
            elif (path, mutant.function) not in functions:
                functions.add((path, mutant.function))
                mutants.append(mutant)
        chosen[package] = mutants
    return chosen


def shares(lines: Mapping[str, int], total: int) -> dict[str, int]:
    """How many mutants each package gets: by its lines, and each at least one."""
    exact = {name: total * count / sum(lines.values()) for name, count in lines.items()}
    sizes = {name: max(1, int(share)) for name, share in exact.items()}
    for name in sorted(exact, key=lambda name: (sizes[name] - exact[name], name)):
        if sum(sizes.values()) >= total:
            break
        sizes[name] += 1
    while sum(sizes.values()) > max(total, len(sizes)):
        sizes[max((n for n in sizes if sizes[n] > 1), key=lambda n: sizes[n] - exact[n])] -= 1
    return sizes


@dataclass(frozen=True)
class Candidate:
    """A mutation by its place in cosmic-ray's order."""

    operator: str
    occurrence: int
    lineno: int


def find_candidates(source: str) -> Iterator[Candidate]:
    """All mutations of a module, less those of types and text."""
    import cosmic_ray.ast
    import cosmic_ray.plugins

    names = scopes(source)
    ranges = skipped(ast.parse(source))
    nodes = list(cosmic_ray.ast.ast_nodes(cosmic_ray.ast.get_ast(source)))
    for name in sorted(cosmic_ray.plugins.operator_names()):
        kind = name.partition("/")[2]
        if not OPERATORS.fullmatch(kind):
            continue
        operator = cosmic_ray.plugins.get_operator(name)()
        positions = [at for node in nodes for at in operator.mutation_positions(node)]
        for occurrence, (start, _) in enumerate(positions):
            # Numbers outside functions are limits and tables, which no test should repeat.
            constant = kind == "NumberReplacer" and start[0] not in names
            if not constant and not any(first <= start < last for first, last in ranges):
                yield Candidate(kind, occurrence, start[0])


def mutate(module: str, source: str, candidate: Candidate) -> Mutant | None:
    """None unless one line changes, and with it what the module does."""
    import cosmic_ray.plugins
    from cosmic_ray.mutating import mutate_code

    operator = cosmic_ray.plugins.get_operator(f"core/{candidate.operator}")()
    lines = source.splitlines()
    changed = (mutate_code(source, operator, candidate.occurrence) or "").splitlines()
    if len(changed) != len(lines):
        return None
    different = [n for n, line in enumerate(lines) if line != changed[n]]
    if len(different) != 1:
        return None
    lineno = different[0] + 1
    line, mutated = lines[different[0]].strip(), changed[different[0]].strip()
    function = scopes(source).get(lineno, "")
    equal = [m.lineno for m in find(module, source, line) if m.function == function]
    if "TYPE_CHECKING" in line or lineno not in equal:
        return None
    nth = equal.index(lineno)
    mutant = Mutant(module, function, line, mutated, candidate.operator, nth, lineno)
    return mutant if place(mutant, {module: source}) else None


Position = tuple[int, int]


def skipped(tree: ast.Module) -> list[tuple[Position, Position]]:
    """Types, decorators, messages and assertions, which are not worth a mutant."""
    nodes: list[ast.expr | ast.stmt | ast.keyword | None] = []
    for statement in tree.body:  # aliases of types
        match statement:
            case ast.Assign(value=ast.BinOp(op=ast.BitOr()) | ast.Subscript()):
                nodes.append(statement.value)
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                nodes += [node.returns, *node.decorator_list]
            case ast.ClassDef():
                nodes += node.decorator_list
            case ast.arg() | ast.AnnAssign():
                nodes.append(node.annotation)
            case ast.Raise() | ast.Assert():
                nodes.append(node)
            case ast.If() if "TYPE_CHECKING" in ast.unparse(node.test):
                nodes.append(node)
            case ast.If() if "__name__" in ast.unparse(node.test):
                nodes.append(node)
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in MESSAGES:
                nodes.append(node)
            case ast.keyword(arg="description" | "flush" | "help" | "indent"):
                nodes.append(node)
    return [
        ((node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0))
        for node in nodes
        if node is not None
    ]
