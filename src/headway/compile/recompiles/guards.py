"""Parse the text of a failed guard: which input changed, and how."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class Guard:
    """A failed guard; `source` is spelled as torch prints it, without its scope."""

    kind: str
    source: str = ""
    dim: int | None = None
    expected: str = ""
    actual: str = ""
    other: tuple[str, int] | None = None  # the size that was assumed to be equal
    text: str = ""  # the guard without comments
    line: str = ""  # file and line of the user's code that the guard is for


@lru_cache(maxsize=50_000)
def parse(reason: str) -> Guard:
    """Parse lines such as `0/1: tensor 'x' size mismatch at index 0. expected 4, actual 5`."""
    head, _, stack = reason.partition("\nUser stack trace:")
    body = re.sub(r"^\S*\d+/\d+\S*: ", "", head.strip())
    text, _, remark = body.partition("  #")
    text = text.strip()
    line = _line(stack)
    for pattern, make in _RULES:
        match = pattern.match(text)
        if match:
            guard = make(match, body, remark)
            if guard is not None:
                return replace(guard, text=text, line=line)
    return Guard("unknown", text=text, line=line)


def _line(stack: str) -> str:
    """The innermost line outside torch: inside modules of torch, torch's own lines follow it."""
    frames = re.findall(r'File "([^"\n]+)", line (\d+)', stack)
    user_frames = [(file, line) for file, line in frames if "/site-packages/torch/" not in file]
    return f"{user_frames[-1][0]}:{user_frames[-1][1]}" if user_frames else ""


_Make = Callable[["re.Match[str]", str, str], Guard | None]


def _size(match: re.Match[str], body: str, remark: str) -> Guard:
    source, dim, expected, actual = match[1], int(match[2]), match[3], match[4]
    kind = "parameter" if "on a parameter" in body else "size"
    return Guard(kind, source, dim, expected, actual)


def _tensor(match: re.Match[str], body: str, remark: str) -> Guard:
    kinds = {
        "dtype": "dtype",
        "rank": "rank",
        "stride": "stride",
        "device": "device",
        "dispatch": "dispatch",
    }
    property_name = match[2].lower().split()[0]
    dim = re.search(r"at index (\d+)", match[2] + match[3])
    expected = re.search(r"expected (?:requires_grad=)?(.+?)(?:, actual (.+))?$", match[3], re.I)
    if property_name == "requires_grad" and expected:
        required = expected[1].strip() == "1"
        return Guard("requires_grad", match[1], expected=str(required), actual=str(not required))
    return Guard(
        kinds.get(property_name, "tensor"),
        match[1],
        int(dim[1]) if dim else None,
        expected[1] if expected else "",
        (expected[2] or "") if expected else "",
    )


def _state(match: re.Match[str], body: str, remark: str) -> Guard:
    changed = match[1].split()
    if any(name.startswith("autocast") for name in changed):
        return Guard("autocast", ", ".join(changed))
    if changed == ["grad_mode"]:
        return Guard("grad_mode", "grad_mode")
    return Guard("global_state", ", ".join(changed))


def _length(match: re.Match[str], body: str, remark: str) -> Guard:
    return Guard("keys" if match[2] == "!=" else "length", match[1], expected=match[3])


def _duck(match: re.Match[str], body: str, remark: str) -> Guard | None:
    return Guard("duck", match[1], int(match[2]), other=(match[3], int(match[4])))


def _zero_one(match: re.Match[str], body: str, remark: str) -> Guard:
    return Guard("zero_one", match[1], int(match[2]))


def _branch(match: re.Match[str], body: str, remark: str) -> Guard:
    return Guard("branch", match[1], int(match[2]))


def _constant(match: re.Match[str], body: str, remark: str) -> Guard:
    source, value = match[1], match[2]
    if source.endswith(".training"):
        return Guard("training", source, expected=value)
    if re.fullmatch(r"-?\d+", value):
        # torch pads the text of constant guards, but not of symbols that the code specializes.
        pinned = not re.search(r" {3,}#", body) and len(source) < 40 and "#" in body
        return Guard("pinned" if pinned else _int(body), source, expected=value)
    if re.fullmatch(r"-?(?:\d[\d.]*(?:e[+-]?\d+)?|inf|nan)", value):
        return Guard("float", source, expected=value)
    return Guard("constant", source, expected=value)


def _int(body: str) -> str:
    return "module_int" if "attributes of the nn.Module" in body else "int"


def _of(kind: str) -> _Make:
    """Make a guard of that kind for the first group that matched."""

    def make(match: re.Match[str], body: str, remark: str) -> Guard:
        names = [text for text in match.groups() if text]
        return Guard(kind, names[0] if names else "", expected=names[1] if names[1:] else "")

    return make


_VALUE = r"(-?[\d.]+(?:e[+-]?\d+)?|-?inf|nan|True|False|'.*'|\".*\"|[\w.]+)"
_SIZE = r"([A-Za-z_](?:\w|\[[^\]]*\]|\.(?!(?:size|stride)\())*)\.(?:size|stride)\(\)\[(\d+)\]"
_RULES: tuple[tuple[re.Pattern[str], _Make], ...] = tuple(
    (re.compile(pattern), make)
    for pattern, make in (
        (r"tensor '(.+)' size mismatch at index (\d+)\. expected (\S+), actual (\d+)", _size),
        (r"tensor '(.+)' (\w[\w ]*?) mismatch(.*)", _tensor),
        (r"(?:tensor '(.+)' )?Tensor device index mismatch()(.*)", _of("device")),
        (r"expected type of '(.+)' to be .+ but found (.+)", _of("tensor_type")),
        (r"Duplicate tensors? found:? ?(.*)", _of("alias")),
        (r"GLOBAL_STATE changed: (.+)", _state),
        (r"(?:utils_device\.CURRENT_DEVICE|___check_current_device|___check_torch_function_mode)",
         _of("modes")),
        (r"BACKEND_MATCH", _of("backend")),
        (r"len\((.+)\) (==|!=) (\d+)$", _length),
        (r"list\(dict\.keys\((.+?)\)\)\[\d+\] == (.+)", _of("keys")),
        (r"(?:not )?___?(?:dict|set|key)_(?:contains|keys|version|not_contains)\(.*?,? ?(\w\S*)\)",
         _of("keys")),
        (rf"{_SIZE} == {_SIZE}$", _duck),
        (rf"2 <= {_SIZE}$", _zero_one),
        (rf".*?{_SIZE}", _branch),
        (r"___check_type_id\((.+), \d+\)(?:, type=(.+))?", _of("type")),
        (r"___check_obj_id\((.+?)(?:\.__code__)?, \d+\)(?:, type=(.+))?", _of("identity")),
        (r"(?:not )?hasattr\((.+?), ", _of("attribute")),
        (r"(.+?) is (?:not )?None$", _of("none")),
        (r"(.+?) is (?:not )?(.+)$", _of("identity")),
        (rf"([^<>=]+?) == {_VALUE}$", _constant),
        (r"(\w[\w.\[\]'\"]*) (?:<=|<|>=|>|!=|==) ", _of("pinned")),
        (r"(.+) (?:got deallocated|was deallocated|is dead|invalidated).*", _of("freed")),
    )
)  # fmt: skip
