"""Write down everything that users and other programs rely on: docs/reference/surface.txt.

    python -m tools.surface           print it
    python -m tools.surface --write   write the file; `make surface` does that

One item a line, sorted within its section. Commands, settings, names and tables come from the
source; JSON keys and metrics from real outputs for the golden files of tests/golden. A section that
needs packages which are not installed here is left as it is in the file.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import redirect_stderr
from dataclasses import MISSING, fields
from io import StringIO
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from tools import outputs, public
from tools.public import nodes, trees

TREE = Path(__file__).parents[1]
FILE = TREE / "docs" / "reference" / "surface.txt"
HEAD = "# Everything that users and other programs rely on. Written by `make surface`; do not edit."
# What variables of others begin with.
OTHERS = "CUDA|KUBERNETES|MLFLOW|NCCL|OMP|RAY|SLURM|TORCH|TORCHELASTIC|TORCHINDUCTOR|TRITON"
JOURNAL = TREE / "docs" / "journal.md"


class Section(NamedTuple):
    """One part of the file."""

    name: str
    lines: Callable[[], Iterable[str]]
    needs: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        more = f" (needs {', '.join(self.needs)})" if self.needs else ""
        return f"== {self.name}{more}"

    def missing(self) -> list[str]:
        """The packages that it needs and that are not installed."""
        return [name for name in self.needs if importlib.util.find_spec(name) is None]


# Commands


def commands() -> Iterator[str]:
    """Each flag and each argument, of each verb and each action."""
    from headway.cli import VERBS, _top_parser, verb_parser

    yield from _of_parser("headway", _top_parser())
    for verb in VERBS:
        yield f"headway {verb}"
        yield from _of_parser(f"headway {verb}", verb_parser(verb))


def _of_parser(prog: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    for group in parser._mutually_exclusive_groups:
        names = [(one.option_strings or [one.metavar])[0] for one in group._group_actions]
        yield f"{prog} only one of {', '.join(map(str, names))}"
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction) or action.help == argparse.SUPPRESS:
            continue
        if isinstance(action, argparse._SubParsersAction):
            for name, part in action.choices.items():
                yield f"{prog} {name}"
                yield from _of_parser(f"{prog} {name}", part)
            continue
        yield " ".join(filter(None, [prog, _named(action), _told(action)]))


def _named(action: argparse.Action) -> str:
    metavar = action.metavar if isinstance(action.metavar, str) else None
    if not action.option_strings:
        return str(metavar or action.dest)
    takes = action.nargs != 0 and not isinstance(action, argparse.BooleanOptionalAction)
    names = ", ".join(action.option_strings)
    return f"{names} {metavar or action.dest.upper()}" if takes else names


def _told(action: argparse.Action) -> str:
    told = []
    if isinstance(action.type, type):
        told.append(action.type.__name__)
    if action.choices:
        told.append(f"choices={','.join(map(str, action.choices))}")
    if action.default not in (None, argparse.SUPPRESS) and action.default is not False:
        told.append(f"default={action.default!r}")
    if action.nargs not in (None, 0):
        told.append(f"nargs={action.nargs}")
    if isinstance(action, argparse._AppendAction):
        told.append("repeated")
    if action.required and action.option_strings:
        told.append("required")
    return f"[{' '.join(told)}]" if told else ""


# Settings and variables


def settings() -> Iterator[str]:
    """Each setting: its type, default and variable."""
    from headway.settings import Settings

    for field in fields(Settings):
        assert field.default is not MISSING
        variable = f"HEADWAY_{field.name.upper()}"
        yield f"{field.name}: {field.type} = {field.default!r} ({variable})"


def variables() -> Iterator[str]:
    """Each variable of Headway that the source names beside those of settings, and others'."""
    from headway.settings import Settings

    known = {f"HEADWAY_{field.name.upper()}" for field in fields(Settings)}
    for tree, file in zip(trees().values(), nodes(), strict=True):
        for text in _texts(file):
            yield from set(re.findall(r"\bHEADWAY_[A-Z_]+\b", text)) - known
            if re.fullmatch(rf"(?:{OTHERS})_[A-Z0-9_]+", text):
                yield text
        yield from _read_variables(tree, file)


def _texts(file: Iterable[ast.AST]) -> Iterator[str]:
    for node in file:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _read_variables(tree: ast.Module, file: Iterable[ast.AST]) -> Iterator[str]:
    """Constants by which something named `environ` or `env` is asked."""
    constants = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in file:
        asked: ast.expr | None = None
        if isinstance(node, ast.Subscript) and _is_environment(node.value):
            asked = node.slice
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("get", "pop", "setdefault")
            and _is_environment(node.func.value)
        ):
            asked = node.args[0]
        value = asked.value if isinstance(asked, ast.Constant) else None
        if isinstance(asked, ast.Name):
            value = constants.get(asked.id)
        if isinstance(value, str) and re.fullmatch(r"[A-Z][A-Z0-9_]+", value):
            yield value


def _is_environment(node: ast.expr) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return name in ("environ", "env")


# Words


def buckets() -> Iterator[str]:
    """Each bucket, and the side on which it counts."""
    from headway.ledger.buckets import BUCKETS, side

    return (f"{leaf} {side(leaf)}" for leaf in BUCKETS)


def categories() -> Iterator[str]:
    """Each category of failures with its owner and whether to try again."""
    from headway.taxonomy import CATEGORIES, RETRIES

    yield from (f"retry {name}" for name in RETRIES)
    yield from (f"{name} owner={one.owner} retry={one.retry}" for name, one in CATEGORIES.items())


def words() -> Iterator[str]:
    """Other words of outputs, files and flags."""
    from typing import get_args

    from headway.chaos.plan import CORRUPTIONS, DISK_MODES, KINDS
    from headway.cli.export import FORMATS
    from headway.ledger.model import COMPILE_PARTS, Outcome
    from headway.session.registry import BOOSTERS

    yield from (f"outcome {name}" for name in get_args(Outcome))
    yield from (f"booster {name}" for name in BOOSTERS)
    yield from (f"export {name}" for name in FORMATS)
    yield from (f"compile part {name}" for name in COMPILE_PARTS)
    yield from (f"fault {name} {' '.join(keys)}" for name, keys in KINDS.items())
    yield from (f"disk mode {name}" for name in DISK_MODES)
    yield from (f"corrupt how {name}" for name in CORRUPTIONS)


def exit_codes() -> Iterator[str]:
    """Of each error, and of what ends a command otherwise."""
    from headway import cli, errors

    for name, one in inspect.getmembers(errors, inspect.isclass):
        if issubclass(one, errors.HeadwayError):
            yield f"{name} {one.exit_code}"
    for error in (BrokenPipeError(), KeyboardInterrupt(), RuntimeError()):
        failing = mock.patch.object(cli, "_dispatch", side_effect=error)
        with failing, mock.patch("os.dup2"), redirect_stderr(StringIO()):
            yield f"{type(error).__name__} {cli.main([])}"


def entry_points() -> Iterator[str]:
    """The groups in which other packages offer something, and our own commands."""
    for file in nodes():
        for text in _texts(file):
            if re.fullmatch(r"headway\.(policies|readers|rules|targets)", text):
                yield f"group {text}"
    found = re.search(r"\[project.scripts\]\n((?:.+\n)+)", (TREE / "pyproject.toml").read_text())
    assert found is not None
    yield from (f"command {line}" for line in found[1].splitlines())


# Journals


def journal_documented() -> Iterator[str]:
    """Each event, span and field of docs/journal.md: the words of its tables."""
    heading, columns, code = "", [""], False
    above: list[str] = []
    for line in JOURNAL.read_text().splitlines():
        code ^= line.startswith("```")
        if code:
            continue
        if line.startswith("#"):
            heading = line.lstrip("# ")
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if cells and set("".join(cells)) <= {"-"}:
            columns = above
        elif cells and columns and above and heading != "What readers tolerate":
            yield from _of_row(heading, columns[0].strip("`"), cells)
        elif not cells:
            columns = []
        above = cells


def _of_row(heading: str, column: str, cells: list[str]) -> Iterator[str]:
    """A row that begins with names of events, spans, fields or cells of the page."""
    if column == "cell":
        yield f"{heading}: {cells[0]} {cells[1].strip('`')}"
        return
    kind = "span" if column == "name" else column if column == "field" else "event"
    where = f"{heading} " if kind == "field" else ""
    for name in re.findall(r"`(\w+)`", cells[0]):
        yield f"{where}{kind} {name}"
        if kind != "field" and heading != "Events":
            yield from (f"{kind} {name}: {word}" for word in re.findall(r"`([a-z]\w*)`", cells[-1]))


def journal_written() -> Iterator[str]:
    """Each event that the source writes in so many words, and the fields that stand there."""
    for file in nodes():
        for node in file:
            if isinstance(node, ast.Dict):
                yield from _of_dict(node)
            elif isinstance(node, ast.Call):
                yield from _of_call(node)


def _of_dict(node: ast.Dict) -> Iterator[str]:
    keys = {
        key.value: value
        for key, value in zip(node.keys, node.values, strict=True)
        if isinstance(key, ast.Constant)
    }
    kind = keys.get("ev")
    if isinstance(kind, ast.Constant):
        yield f"{kind.value}"
        yield from (f"{kind.value} {name}" for name in keys if name != "ev")


def _of_call(node: ast.Call) -> Iterator[str]:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    kind = node.args[0] if node.args else None
    if name in ("emit", "_emit", "begin") and isinstance(kind, ast.Constant):
        told = f"span {kind.value}" if name == "begin" else f"{kind.value}"
        yield told
        yield from (f"{told} {word.arg}" for word in node.keywords if word.arg)


# Stores


def store_tables() -> Iterator[str]:
    """Each column of each table of a fleet store."""
    from headway.fleet.schema import SCHEMA, TABLES

    yield f"schema {SCHEMA}"
    for table in TABLES.values():
        yield f"{table.name} day={table.day}"
        for column in table.columns:
            null = "" if column.required else " null"
            yield f"{table.name}.{column.name} {column.type}{null}"


def store_splits() -> Iterator[str]:
    """By what each question can be split, and what its runs can be chosen by."""
    from headway.fleet.queries.dimensions import DIMENSIONS, RUN_DIMENSIONS
    from headway.fleet.queries.queries import QUERIES

    for name, query in QUERIES.items():
        yield from (f"fleet {name} --by {one}" for one in (*DIMENSIONS, *query.dimensions))
    yield from (f"--where {one}=" for one in RUN_DIMENSIONS)


SECTIONS = (
    Section("commands", commands),
    Section("settings", settings),
    Section("environment variables", variables),
    Section("python", public.names),
    Section("entry points", entry_points),
    Section("exit codes", exit_codes),
    Section("buckets", buckets),
    Section("failure categories", categories),
    Section("words", words),
    Section("journal: documented", journal_documented),
    Section("journal: written", journal_written),
    Section("store tables", store_tables),
    Section("store splits", store_splits),
    *(Section(*one) for one in outputs.SECTIONS),
)


def made(section: Section) -> str:
    """The text of a section."""
    return "".join(f"{line}\n" for line in (section.title, *sorted(set(section.lines()))))


def recorded() -> Mapping[str, str]:
    """The text of each section of the file, by its title."""
    parts = re.split(r"(?m)^(?=== )", FILE.read_text())[1:]
    return {part.partition("\n")[0]: part.rstrip("\n") + "\n" for part in parts}


def text() -> str:
    """The whole file."""
    kept: Mapping[str, str] = recorded() if FILE.exists() else {}
    parts = [kept.get(one.title, "") if one.missing() else made(one) for one in SECTIONS]
    return "\n".join([f"{HEAD}\n", *filter(None, parts)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--write", action="store_true", help=f"to {FILE.relative_to(TREE)}")
    if not parser.parse_args().write:
        sys.stdout.write(text())
        return
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text(text())
    for section in SECTIONS:
        if missing := section.missing():
            print(f"left as it is: {section.name}, for want of {', '.join(missing)}")


if __name__ == "__main__":
    main()
