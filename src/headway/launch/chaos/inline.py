"""A plan in one line, for quick use: `kill rank=1 step=30; seed=7`."""

from __future__ import annotations

import shlex
from typing import Any

from headway.errors import UsageError
from headway.launch.chaos.plan import KINDS, FaultPlan, parse_plan

# What may be written instead of the name in a file.
SHORT_KEYS = {
    "rank": "who",
    "step": "at_step",
    "after": "after_s",
    "every": "every_s",
    "between": "steps_between",
    "for": "for_s",
    "grace": "grace_s",
    "delay": "delay_s",
}
LIST_KEYS = ("steps_between", "attempt")
TEXT_KEYS = ("path", "exception", "device", "node", "mode", "how", "when")


def parse_inline_plan(text: str, where: str = "--chaos") -> FaultPlan:
    """Faults one after the other, with `;` between them."""
    data: dict[str, Any] = {"fault": []}
    for number, words in enumerate(_split_faults(text, where), 1):
        if words[0].startswith("seed=") and len(words) == 1:
            data["seed"] = _value("seed", words[0].partition("=")[2])
            continue
        if words[0] not in KINDS:
            raise UsageError(
                f"{where}: {words[0]!r} is neither a file nor a kind of fault; a fault is one of "
                f"{', '.join(KINDS)}, as in 'kill rank=1 step=30'",
                code="fault-kind-unknown",
                kind=words[0],
            )
        table: dict[str, Any] = {"kind": words[0]}
        for word in words[1:]:
            key, equals, value = word.partition("=")
            if not equals:
                raise UsageError(
                    f"{where}: fault {number}: {word!r} is not of the form key=value",
                    code="fault-word-invalid",
                    word=word,
                )
            name = SHORT_KEYS.get(key, key)
            table[name] = _value(name, value)
        data["fault"].append(table)
    return parse_plan(data, where)


def _split_faults(text: str, where: str) -> list[list[str]]:
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";")
    lexer.whitespace_split = True
    lexer.commenters = ""
    parts: list[list[str]] = [[]]
    try:
        for token in lexer:
            if set(token) == {";"}:
                parts.append([])
            else:
                parts[-1].append(token)
    except ValueError as error:
        raise UsageError(
            f"{where}: {text!r} cannot be read: {error}", code="plan-unreadable"
        ) from None
    return [part for part in parts if part]


def _value(key: str, text: str) -> Any:
    """As a file would have it: a number where it looks like one."""
    if key in TEXT_KEYS:
        return text
    if key in LIST_KEYS:
        several = text.replace("..", ",").split(",")
        return _number(text) if len(several) == 1 else [_number(one) for one in several]
    return _number(text)


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
