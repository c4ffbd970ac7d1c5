"""Every error, warning and note has a stable code; `tests/messages.txt` shows all of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import headway
from tests.support import TESTS

SOURCE = Path(headway.__path__[0])
PACKAGES = sorted(p.name for p in SOURCE.iterdir() if p.is_dir() and any(p.glob("**/*.py")))
CODE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


@cache
def trees() -> dict[Path, ast.Module]:
    return {
        path.relative_to(SOURCE): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(SOURCE.rglob("*.py"))
    }


@cache
def error_classes() -> dict[str, str]:
    """Subclasses of HeadwayError and HeadwayWarning, with their codes."""
    classes = [n for t in trees().values() for n in ast.walk(t) if isinstance(n, ast.ClassDef)]
    codes = {"HeadwayError": "", "HeadwayWarning": ""}
    for _ in classes:
        for node in classes:
            parents = [b.id for b in node.bases if isinstance(b, ast.Name) and b.id in codes]
            if parents and node.name not in codes:
                codes[node.name] = _class_code(node) or codes[parents[0]]
    return codes


def _class_code(node: ast.ClassDef) -> str:
    for line in node.body:
        if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "code":
            return str(ast.literal_eval(line.value))
    return ""


def calls(package: str | None = None) -> Iterator[tuple[ast.Call, str]]:
    """All calls in a package (`""`: the root modules), each with the name of what is called."""
    for path, tree in trees().items():
        if package is None or package == (path.parts[0] if len(path.parts) > 1 else ""):
            nodes = list(ast.walk(tree))
            other = {  # classes with the name of an error that are none
                node.name
                for node in nodes
                if isinstance(node, ast.ClassDef)
                and not any(ast.unparse(base) in error_classes() for base in node.bases)
                and node.name not in ("HeadwayError", "HeadwayWarning")
            }
            for node in nodes:
                if isinstance(node, ast.Call):
                    name = ast.unparse(node.func).rpartition(".")[2]
                    if name not in other:
                        yield node, name


def code_of(call: ast.Call, name: str) -> str | None:
    """The literal code, or `None`; a code that is not a literal comes from elsewhere."""
    for keyword in call.keywords:
        if keyword.arg == "code":
            value = keyword.value
            return value.value if isinstance(value, ast.Constant) else "*"
    return error_classes().get(name) or None


def template(node: ast.expr | None) -> str:
    """The text of an argument, with the source of its expressions."""
    if node is None:
        return ""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(map(template, node.values))
    if isinstance(node, ast.FormattedValue):
        return f"{{{ast.unparse(node.value)}}}"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return template(node.left) + template(node.right)
    return f"{{{ast.unparse(node)}}}"


@pytest.mark.parametrize("package", ["", *PACKAGES])
def test_every_error_has_a_code(package: str) -> None:
    missing = [
        f"line {call.lineno}: {ast.unparse(call)[:100]}"
        for call, name in calls(package)
        if name in error_classes() and code_of(call, name) is None
    ]
    assert not missing


def test_no_test_depends_on_the_words_of_an_error() -> None:
    prose = [
        f"{path.relative_to(TESTS)}:{node.lineno}"
        for path in sorted(TESTS.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).rpartition(".")[2] in ("raises", "warns")
        and node.args
        and any(name in error_classes() for name in re.findall(r"\w+", ast.unparse(node.args[0])))
        and any(k.arg == "match" and " " in ast.unparse(k.value) for k in node.keywords)
    ]
    assert not prose, "assert the code: pytest.raises(..., check=has_code(...))"


def test_all_messages(update_golden: bool) -> None:
    lines = set()
    for call, name in calls():
        code = code_of(call, name)
        if not code or code == "*" or (name not in error_classes() and not call.args):
            continue
        assert CODE.fullmatch(code), code
        # The first argument of a note is the name of the hook.
        text = call.args[1 if name == "note" and len(call.args) > 1 else 0] if call.args else None
        lines.add(f"{code:<32} {name:<18} {template(text)}".rstrip())
    path = TESTS / "messages.txt"
    text = "\n".join(sorted(lines)) + "\n"
    if update_golden:
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), "review it with --update-golden"
