"""Fault plans: parsed from a file or one line, checked in full before a job starts, shown as text.

The short form: `kill rank=1 step=30; seed=7`.
"""

from __future__ import annotations

import builtins
import errno
import hashlib
import json
import math
import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from headway.chaos import network
from headway.errors import UsageError

MOMENT_KEYS = ("at_step", "after_s", "every_s", "steps_between", "when")
SHARED_KEYS = ("kind", *MOMENT_KEYS, "attempt", "times", "node")
# The keys of each kind; those with a star are required.
KINDS: dict[str, tuple[str, ...]] = {
    "kill": ("who*",),
    "terminate": ("who", "grace_s"),
    "stop": ("who*", "for_s"),
    "raise": ("who*", "exception"),
    "disk": ("who", "path*", "mode", "delay_s", "errno", "for_s"),
    "corrupt": ("path*", "how"),
    "network": ("device*", "for_s"),
    "data": ("who", "delay_s*", "for_s"),
}
RANK_KINDS = ("raise", "disk", "data")  # always injected by the rank itself
DISK_MODES = ("slow", "fail", "full")
CORRUPTIONS = ("flip", "truncate", "zero")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One table of a plan. Exactly one of the five keys for the moment is set."""

    number: int  # its position in the plan, starting at 1
    kind: str
    # A rank, or agent, all, random; launcher, file or device for kinds without a target.
    who: int | str
    at_step: int | None = None
    after_s: float | None = None
    every_s: float | None = None
    steps_between: tuple[int, int] | None = None
    on_restart: bool = False
    attempts: tuple[int, ...] | None = None
    times: int | None = None
    node: str | None = None
    grace_s: float = 30.0
    for_s: float | None = None
    exception: str = "RuntimeError: a planned fault"
    path: str = ""
    mode: str = "fail"
    delay_s: float = 1.0
    errno: int = errno.EIO
    how: str = "flip"
    device: str = ""

    @property
    def by_step(self) -> bool:
        """Whether it happens at a step, which a rank has to report."""
        return self.at_step is not None or self.steps_between is not None

    @property
    def recurring(self) -> bool:
        """Whether it happens repeatedly, at random intervals."""
        return self.every_s is not None or self.steps_between is not None

    @property
    def by_rank(self) -> bool:
        """Whether the rank injects it itself, as only the rank is at the exact step."""
        if self.kind in RANK_KINDS:
            return True
        return self.by_step and (type(self.who) is int or self.who == "random")

    @property
    def text(self) -> str:
        """The fault in words, for the journal and the report."""
        return describe_fault(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """All planned faults; the same seed gives the same faults at the same moments."""

    seed: int = 0
    faults: tuple[Fault, ...] = ()

    @property
    def mark(self) -> str:
        """Distinguishes this plan from another plan of the same run."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:8]


def read_plan(text: str) -> FaultPlan:
    """Read a plan from a TOML or JSON file, or from one line."""
    path = Path(text)
    try:
        is_file = path.is_file()
    except (OSError, ValueError):  # too long for a file name
        is_file = False
    if is_file:
        return parse_plan(_read_file(path), text)
    if path.suffix in (".toml", ".json") and "=" not in text:
        raise UsageError(f"the plan {text} was not found; check its name", code="plan-not-found")
    return parse_inline_plan(text, "the plan")


def _read_file(path: Path) -> dict[str, Any]:
    if path.suffix != ".json":
        from headway.settings import read_toml

        return read_toml(path)
    try:
        content = json.loads(path.read_text())
    except ValueError as error:
        raise UsageError(f"{path} is not valid JSON: {error}", code="json-invalid") from None
    if not isinstance(content, dict):
        raise UsageError(
            f"{path} is not a table; a plan is {{'seed': 7, 'fault': [...]}}",
            code="plan-not-a-table",
        )
    return content


def parse_plan(data: Mapping[str, Any], source: str) -> FaultPlan:
    """Parse the content of a plan file; UsageError for the first invalid value."""
    for key in data:
        if key not in ("seed", "fault"):
            raise UsageError(
                f"{source}: {key!r} is not a key of a plan; a plan has `seed` and [[fault]]",
                code="plan-key-unknown",
                key=key,
            )
    seed = data.get("seed", 0)
    if type(seed) is not int:
        raise UsageError(
            f"{source}: seed is {seed!r}, but it must be a whole number", code="plan-seed-invalid"
        )
    tables = data.get("fault", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise UsageError(
            f"{source}: `fault` must be a list of tables: [[fault]]", code="plan-faults-invalid"
        )
    if not tables:
        raise UsageError(
            f"{source}: the plan has no [[fault]]; see docs/chaos.md for examples",
            code="plan-empty",
        )
    faults = [_FaultTable(table, number, source).fault() for number, table in enumerate(tables, 1)]
    return FaultPlan(seed=seed, faults=tuple(faults))


class _FaultTable:
    """One [[fault]] table as it was written."""

    def __init__(self, table: dict[str, Any], number: int, source: str) -> None:
        self.table = table
        self.number = number
        self.source = f"{source}: fault {number}"

    def _reject(self, key: str, must: str) -> NoReturn:
        value = self.table.get(key)
        raise UsageError(
            f"{self.source}: {key} is {value!r}, but it must be {must}",
            code="fault-value-invalid",
            fault=self.number,
            key=key,
        )

    def fault(self) -> Fault:
        kind = self._one_of("kind", tuple(KINDS), None)
        self._check_keys(kind)
        read: dict[str, Any] = {"number": self.number, "kind": kind, "who": self._target(kind)}
        read |= self._moment(kind)
        read |= self._limits()
        read |= self._details(kind)
        return Fault(**read)

    def _check_keys(self, kind: str) -> None:
        own = [key.rstrip("*") for key in KINDS[kind]]
        shared = [key for key in SHARED_KEYS if key != "when" or kind == "corrupt"]
        for key in self.table:
            if key not in own and key not in shared:
                raise UsageError(
                    f"{self.source}: {key!r} does not apply to {kind!r}, which takes "
                    f"{', '.join(dict.fromkeys([*own, *shared[1:]]))}",
                    code="fault-key-unknown",
                    fault=self.number,
                    key=key,
                )
        for key in KINDS[kind]:
            if key.endswith("*") and key[:-1] not in self.table:
                raise UsageError(
                    f"{self.source}: {kind!r} needs {key[:-1]!r}: {_EXAMPLES[kind]}",
                    code="fault-key-missing",
                    fault=self.number,
                    key=key[:-1],
                )

    # -- target and moment ----------------------------------------------------------------------

    def _target(self, kind: str) -> int | str:
        if kind in ("corrupt", "network"):
            return "file" if kind == "corrupt" else "device"
        names = ["random", "all", *(() if kind in RANK_KINDS else ("agent",))]
        if "who" not in self.table:
            return "launcher" if kind == "terminate" else "all"
        who = self.table["who"]
        if type(who) is int and who >= 0:
            return who
        if isinstance(who, str) and who in names:
            return who
        options = " or ".join(f'"{name}"' for name in names)
        self._reject("who", f"the number of a rank, {options}")

    def _moment(self, kind: str) -> dict[str, Any]:
        given = [key for key in MOMENT_KEYS if key in self.table]
        if len(given) != 1:
            problem = "no key sets" if not given else f"{' and '.join(given)} both set"
            keys = [key for key in MOMENT_KEYS if key != "when" or kind == "corrupt"]
            raise UsageError(
                f"{self.source}: {problem} the moment; give one of {', '.join(keys)}",
                code="fault-moment-not-unique",
                fault=self.number,
                given=given,
            )
        (key,) = given
        if key == "when":
            self._one_of("when", ("restart",), None)
            return {"on_restart": True}
        if key == "at_step":
            return {key: self._whole_number(key, 1)}
        if key == "steps_between":
            return {key: self._between()}
        seconds = self._seconds(key)
        if key == "every_s" and not seconds:
            self._reject(key, "a number of seconds greater than 0")
        return {key: seconds}

    def _between(self) -> tuple[int, int]:
        value = self.table["steps_between"]
        pair = isinstance(value, (list, tuple)) and len(value) == 2
        if not pair or any(type(v) is not int for v in value) or not 1 <= value[0] <= value[1]:
            self._reject("steps_between", "two whole numbers of at least 1, such as [20, 60]")
        return value[0], value[1]

    def _limits(self) -> dict[str, Any]:
        read: dict[str, Any] = {}
        if "attempt" in self.table:
            value = self.table["attempt"]
            attempts = list(value) if isinstance(value, (list, tuple)) else [value]
            if not attempts or any(type(v) is not int or v < 0 for v in attempts):
                self._reject("attempt", "the number of an attempt (0 or greater) or a list of them")
            read["attempts"] = tuple(attempts)
        if "times" in self.table:
            read["times"] = self._whole_number("times", 1)
        if "node" in self.table:
            read["node"] = self._text("node", "the name of a host")
        return read

    # -- details of a kind ----------------------------------------------------------------------

    def _details(self, kind: str) -> dict[str, Any]:
        read: dict[str, Any] = {}
        for key in ("grace_s", "for_s", "delay_s"):
            if key in self.table:
                read[key] = self._seconds(key)
        if kind == "data" and not read["delay_s"]:
            self._reject("delay_s", "a number of seconds greater than 0")
        if kind in ("disk", "corrupt"):
            read["path"] = os.path.realpath(self._text("path", "a folder"))
        if kind == "raise" and "exception" in self.table:
            read["exception"] = self._exception()
        if kind == "corrupt":
            read["how"] = self._one_of("how", CORRUPTIONS, "flip")
        if kind == "network":
            read["device"] = self._text("device", "the name of a network device")
            reason = network.unusable_reason(read["device"])
            if reason:
                raise UsageError(
                    f"{self.source}: {reason}", code="network-fault-impossible", fault=self.number
                )
        return read | (self._disk() if kind == "disk" else {})

    def _disk(self) -> dict[str, Any]:
        mode = self._one_of("mode", DISK_MODES, "fail")
        for key, modes in (("delay_s", ("slow",)), ("errno", ("fail",))):
            if key in self.table and mode not in modes:
                raise UsageError(
                    f'{self.source}: {key} requires mode = "{modes[0]}", not {mode!r}',
                    code="fault-mode-mismatch",
                    fault=self.number,
                    key=key,
                )
        number = errno.ENOSPC if mode == "full" else errno.EIO
        if "errno" in self.table:
            value = self.table["errno"]
            numbers = {name: n for n, name in errno.errorcode.items()}
            number = numbers.get(value, 0) if isinstance(value, str) else value
            if type(number) is not int or number not in errno.errorcode:
                self._reject("errno", 'the name or number of an error, such as "EIO" or 5')
        return {"mode": mode, "errno": number}

    def _exception(self) -> str:
        text = self._text("exception", 'an exception such as "RuntimeError: boom"')
        name, _, message = text.partition(":")
        if "." in name:
            return text  # of a library, which only the rank can import
        kind = getattr(builtins, name, None)
        if not isinstance(kind, type) or not issubclass(kind, BaseException):
            self._reject(
                "exception", "a built-in exception or module.Name, such as RuntimeError: boom"
            )
        try:
            kind(message.strip())
        except TypeError:
            self._reject("exception", "an exception that takes a text, such as RuntimeError: boom")
        return text

    # -- values -------------------------------------------------------------------------------

    def _one_of(self, key: str, names: tuple[str, ...], default: str | None) -> str:
        value = self.table.get(key, default)
        if value not in names or not isinstance(value, str):
            options = ", ".join(f'"{name}"' for name in names)
            self._reject(key, options if len(names) == 1 else f"one of {options}")
        return value

    def _whole_number(self, key: str, minimum: int) -> int:
        value = self.table[key]
        if type(value) is not int or value < minimum:
            self._reject(key, f"a whole number of at least {minimum}")
        return value

    def _seconds(self, key: str) -> float:
        value = self.table[key]
        if type(value) not in (int, float) or not 0 <= value < math.inf:
            self._reject(key, "a number of seconds, 0 or greater")
        return float(value)

    def _text(self, key: str, must: str) -> str:
        value = self.table.get(key)
        if not isinstance(value, str) or not value.strip():
            self._reject(key, must)
        return value


_EXAMPLES = {
    "kill": "who = 1",
    "stop": "who = 1",
    "raise": "who = 1",
    "disk": 'path = "checkpoints"',
    "corrupt": 'path = "checkpoints"',
    "network": 'device = "eth0"',
    "data": "delay_s = 0.5",
}


# Short forms of keys.
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


def parse_inline_plan(text: str, source: str = "--chaos") -> FaultPlan:
    """Parse faults in one line, separated by `;`."""
    data: dict[str, Any] = {"fault": []}
    for number, words in enumerate(_split_faults(text, source), 1):
        if words[0].startswith("seed=") and len(words) == 1:
            data["seed"] = _value("seed", words[0].partition("=")[2])
            continue
        if words[0] not in KINDS:
            raise UsageError(
                f"{source}: {words[0]!r} is neither a file nor a kind of fault; a fault is one of "
                f"{', '.join(KINDS)}, such as 'kill rank=1 step=30'",
                code="fault-kind-unknown",
                kind=words[0],
            )
        table: dict[str, Any] = {"kind": words[0]}
        for word in words[1:]:
            key, equals, value = word.partition("=")
            if not equals:
                raise UsageError(
                    f"{source}: fault {number}: {word!r} is not of the form key=value",
                    code="fault-word-invalid",
                    word=word,
                )
            name = SHORT_KEYS.get(key, key)
            table[name] = _value(name, value)
        data["fault"].append(table)
    return parse_plan(data, source)


def _split_faults(text: str, source: str) -> list[list[str]]:
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
            f"{source}: {text!r} cannot be read: {error}", code="plan-unreadable"
        ) from None
    return [part for part in parts if part]


def _value(key: str, text: str) -> Any:
    """The value as a file would have it: a number if possible."""
    if key in TEXT_KEYS:
        return text
    if key in LIST_KEYS:
        parts = text.replace("..", ",").split(",")
        return _number(text) if len(parts) == 1 else [_number(part) for part in parts]
    return _number(text)


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def describe_fault(fault: Fault) -> str:
    """A fault in words: `kill rank 1 at step 30`."""
    lasting = "" if fault.for_s is None else f" for {fault.for_s:g} s"
    what = f"{_DESCRIPTIONS[fault.kind](fault)}{lasting}"
    return f"{what} {_describe_moment(fault)}{_describe_limits(fault)}"


_DISK_MODES = {"slow": "slow", "fail": "failing", "full": "full"}
_TARGET_NAMES = {
    "agent": "the agent",
    "all": "all ranks",
    "random": "a random rank",
    "launcher": "the job",
}
_DESCRIPTIONS: dict[str, Callable[[Fault], str]] = {
    "kill": lambda f: f"kill {_describe_target(f)}",
    "terminate": lambda f: f"terminate {_describe_target(f)}, {f.grace_s:g} s of grace,",
    "stop": lambda f: f"stop {_describe_target(f)}",
    "raise": lambda f: f"raise {f.exception!r} in {_describe_target(f)}",
    "disk": lambda f: f"{_DISK_MODES[f.mode]} disk below {f.path} for {_describe_target(f)}",
    "corrupt": lambda f: f"corrupt ({f.how}) the newest checkpoint below {f.path}",
    "network": lambda f: f"cut the network at {f.device}",
    "data": lambda f: f"delay each batch of {_describe_target(f)} by {f.delay_s:g} s",
}


def _describe_target(fault: Fault) -> str:
    if fault.who == "all" and not fault.by_rank:
        return "everything"
    return _TARGET_NAMES.get(str(fault.who), f"rank {fault.who}")


def _describe_moment(fault: Fault) -> str:
    if fault.at_step is not None:
        return f"at step {fault.at_step}"
    if fault.after_s is not None:
        return f"after {fault.after_s:g} s"
    if fault.every_s is not None:
        return f"every {fault.every_s:g} s on average"
    if fault.steps_between is not None:
        return "every {}-{} steps".format(*fault.steps_between)
    return "before a restart"


def _describe_limits(fault: Fault) -> str:
    text = ""
    if fault.attempts is not None:
        text += f" of attempt {', '.join(map(str, fault.attempts))}"
    if fault.times is not None:
        text += f", {fault.times} times at most"
    return text + (f", on {fault.node}" if fault.node else "")
