"""Mask secrets in what is shown, exported or stored: by name, place in a URL, token format.

A secret has to be recognizable: by the name before it (`--api-key X`, `TOKEN=X`, `"password": X`,
`Authorization: X`), by its position in a URL, or by the format of the token itself. Where the end
of a secret is not clear, more is masked rather than less.
"""

from __future__ import annotations

import re
import shlex
from functools import lru_cache

TYPE_CHECKING = False  # loaded in every process of a job: keep the import cheap
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

MASK = "MASKED"  # needs no quotes in a shell, and is not masked again

# Last parts of names of secrets.
_LAST = {
    "auth", "authorization", "bearer", "cookie", "credential", "credentials", "creds", "jwt",
    "pass", "passphrase", "passwd", "password", "passwords", "pat", "pw", "pwd", "sas", "secret",
    "secrets", "token",
}  # fmt: skip
_ENDINGS = ("apikey", "accesskey", "secretkey", "privatekey", "password", "passwd", "token")
# Parts before `key` in names of secrets; other keys are those of caches, tables and dictionaries.
_KEYS = {
    "access", "account", "ai", "anthropic", "api", "app", "auth", "azure", "client", "comet",
    "deploy", "encryption", "hf", "hmac", "kaggle", "license", "master", "openai", "private",
    "secret", "service", "shared", "signing", "ssh", "storage", "wandb",
}  # fmt: skip
_AFTER = {"dev", "json", "prod", "production", "staging"}  # `HF_TOKEN_PROD`, `CREDENTIALS_JSON`
# Tokens of a vocabulary are not secrets.
_VOCABULARY = {
    "bos", "cls", "end", "eos", "image", "mask", "next", "pad", "per", "sep", "special", "start",
    "stop", "unk",
}  # fmt: skip
_NUMBERED = {"auth", "pass", "token"}  # also names of counts and switches
_IN_QUERY = {"code", "key", "sig", "signature"}  # secrets only in the query of a URL
_NO_SECRET = {"", "true", "false", "none", "null", "yes", "no", MASK.lower()}

_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_MAYBE = re.compile(r"[=:@]|%3[dD]|(?:^|[\s'\"])-|[\w-]{16}")
_NAME = re.compile(
    r"(?<![A-Za-z0-9_])(?P<name>[A-Za-z_][\w.-]{0,127})"
    r"(?P<mark>\\?[\"']?\s{0,3}(?:=|:(?!//)|%3[dD])\s{0,3})"
)
_VALUE = re.compile(
    r"\\\"(?:[^\"\\]|\\(?!\"))*(?:\\\")?|\"(?:[^\"\\]|\\.)*\"?|'(?:[^'\\]|\\.)*'?"
    r"|\[(?=\s*\\?[\"'])(?:\"(?:[^\"\\]|\\.)*\"?|'(?:[^'\\]|\\.)*'?|[^\]\"'])*\]?"  # a list
    r"|\{(?=\s*\\?[\"'])(?:\"(?:[^\"\\]|\\.)*\"?|'(?:[^'\\]|\\.)*'?|[^}\"'])*\}?"  # an object
    r"|(?:(?:bearer|basic|token|digest|negotiate)\s+)?[^\s\"']+",
    re.IGNORECASE | re.DOTALL,
)
_COUNT = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,6})?")
_QUERY_VALUE = re.compile(r"[^\s\"'&#]*")
_FLAG = re.compile(r"(?<![\w-])--?(?P<name>[A-Za-z][\w.-]{0,127})\s{1,3}(?!--)")
_ARGUMENT = re.compile(r"(?:'[^']*'?|\"[^\"]*\"?|[^\s'\"])+")
_WORD_PAIR = re.compile(r"[-+~]*(?P<name>[A-Za-z_][\w.-]*)(?P<mark>=|:\s*)(?P<value>.+)", re.DOTALL)
_WORD_FLAG = re.compile(r"--?(?P<name>[A-Za-z][\w.-]*)")

# A colon before digits precedes a port.
_USER_INFO = re.compile(
    r"(?<=://)([^\s:/?#@'\"]{0,256}):(?!\d{1,5}(?:[/?#\s'\"]|$))[^\s'\"]{0,1024}@"
)
# The same if the text was cut before the `@`, and without a scheme, before a host.
_CUT_USER_INFO = re.compile(
    r"(?<=://)([^\s:/?#@'\"]{0,256}):(?!\d{1,5}(?:[/?#]|$))[^\s:/?#@'\"\])},;]{1,1024}$"
)
_BARE_USER_INFO = re.compile(
    r"(?<![\w:/@.-])([A-Za-z_][\w.-]{0,127}):(?!\d{1,5}@)[^\s:/@'\"]{1,256}"
    r"@(?=(?:[\w-]+\.)+\w|[\w.-]+:\d|[\w.-]+/|tcp\()"
)
_HTTP_USER = re.compile(r"(?<=https://)[^\s:/?#@'\"]{1,256}@|(?<=http://)[^\s:/?#@'\"]{1,256}@")
_HOOK = re.compile(
    r"(https?://[^\s/?#'\"]{1,256})/(?=[^\s'\"]{0,512})[^\s'\"]{1,1024}", re.IGNORECASE
)
_SCHEME = re.compile(r"(?i)\b(bearer|basic)(\s{1,3})[A-Za-z0-9._~+/=-]{8,}")
_PRIVATE_KEY = re.compile(
    r"(-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----).*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|$)",
    re.DOTALL,
)
_TOKENS = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"sk-[A-Za-z0-9_-]{12,}|(?:sk|rk|pk)_(?:live|test)_\w{12,}"  # OpenAI, Anthropic; Stripe
    r"|gh[pousr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"  # GitHub, GitLab
    r"|hf_[A-Za-z0-9]{16,}|nvapi-[\w-]{16,}|r8_\w{20,}|npm_\w{20,}|pypi-[\w-]{32,}"
    r"|xox[abeprs]-[\w-]{10,}|A(?:KIA|SIA)[0-9A-Z]{16}|AIza[\w-]{30,}|ya29\.[\w-]{16,}"
    r"|eyJ[\w-]{8,}\.eyJ[\w-]{4,}\.[\w-]*"  # JSON web tokens
    r"|\d{6,12}:[\w-]{30,}"  # Telegram
    r")"
)


@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Whether this is the name of a secret, such as `api_key`, `--hf-token`, `PGPASSWORD`."""
    parts = _parts(name)
    if not parts:
        return False
    last, before = parts[-1], parts[-2] if len(parts) > 1 else ""
    if last == "id" and parts[-3:-1] == ["access", "key"]:
        return True
    if last == "key":
        return before in _KEYS
    if last == "string":
        return before == "connection"
    if last == "token" and before in _VOCABULARY:
        return False
    return last in _LAST or last.endswith(_ENDINGS)


def _parts(name: str) -> list[str]:
    """The words of a name, without a number or an environment at its end: `API_KEY_2`."""
    parts = [part.lower() for part in _PART.findall(name)]
    while len(parts) > 1 and (parts[-1].isdigit() or parts[-1] in _AFTER):
        parts.pop()
    return parts


@lru_cache(maxsize=1024)
def text(value: str) -> str:
    """Mask the secrets in a text; masks remain unchanged."""
    if len(value) < 5 or not _MAYBE.search(value):
        return value
    value = _PRIVATE_KEY.sub(rf"\1{MASK}", value)
    if "://" in value:
        value = _USER_INFO.sub(rf"\1:{MASK}@", value)
        value = _CUT_USER_INFO.sub(rf"\1:{MASK}", value)
        value = _HTTP_USER.sub(f"{MASK}@", value)
        value = _HOOK.sub(_without_hook, value)
    if "@" in value:
        value = _BARE_USER_INFO.sub(rf"\1:{MASK}@", value)
    value = _masked(value, _NAME, _VALUE)
    value = _masked(value, _FLAG, _ARGUMENT)
    value = _SCHEME.sub(rf"\1\2{MASK}", value)
    return _TOKENS.sub(MASK, value)


def words(command: Sequence[str]) -> list[str]:
    """Mask the secrets in the words of a command; a secret may follow its flag."""
    masked: list[str] = []
    flag = ""
    for word in command:
        if not flag and not _MAYBE.search(word):
            masked.append(word)
            continue
        if flag and not word.startswith("--"):
            masked.append(word if _is_plain(flag, word) else MASK)
            flag = ""
            continue
        named = _WORD_FLAG.fullmatch(word)
        flag = named["name"] if named and is_secret_name(named["name"]) else ""
        masked.append(_word(word))
    return masked


def line(command: str) -> str:
    """Mask the secrets in a shell command."""
    try:
        split = shlex.split(command)
    except ValueError:
        return text(command)
    masked = words(split)
    return command if masked == split else shlex.join(masked)


def data(value: Any) -> Any:
    """Mask the secrets in JSON data; a list of strings is treated as a command."""
    if isinstance(value, str):
        return text(value)
    if isinstance(value, dict):
        return {
            name: _hidden(str(name), item) if is_secret_name(str(name)) else data(item)
            for name, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        if value and all(isinstance(item, str) for item in value):
            return words(value)
        return [data(item) for item in value]
    return value


def _hidden(name: str, value: Any) -> Any:
    """Mask all strings below the name of a secret."""
    if isinstance(value, str):
        return text(value) if _is_plain(name, value) else MASK
    if isinstance(value, dict):
        return {key: _hidden(name, item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_hidden(name, item) for item in value]
    return value


def _word(word: str) -> str:
    pair = _WORD_PAIR.fullmatch(word)
    if pair and is_secret_name(pair["name"]) and not _is_plain(pair["name"], pair["value"]):
        return word[: pair.start("value")] + MASK
    return text(word)


def _masked(value: str, names: re.Pattern[str], values: re.Pattern[str]) -> str:
    """Mask the value after each name of a secret; quotes around it are kept."""
    out: list[str] = []
    done = 0
    for name in names.finditer(value):
        start = name.end()
        if name.start() < done or start >= len(value):
            continue
        query = name.start() > 0 and value[name.start() - 1] in "?&"
        last = _parts(name["name"])[-1:]
        if not (is_secret_name(name["name"]) or (query and last and last[0] in _IN_QUERY)):
            continue
        match = (_QUERY_VALUE if query else values).match(value, start)
        if not match or _is_plain(name["name"], match[0]):
            continue
        quote = next((q for q in ('\\"', '"', "'") if match[0].startswith(q)), "")
        closed = len(match[0]) > len(quote) and match[0].endswith(quote)
        out += [value[done:start], quote, MASK, quote if closed else ""]
        done = match.end()
    return "".join([*out, value[done:]])


def _is_plain(name: str, value: str) -> bool:
    """Whether the value is a switch or a count, not a secret."""
    bare = value.strip("\\\"',;)}]").lower()
    if bare in _NO_SECRET:
        return True
    last = _parts(name)[-1:] or [""]
    return last[0] in _NUMBERED and _COUNT.fullmatch(bare) is not None


def _without_hook(url: re.Match[str]) -> str:
    """Mask the URL of a webhook, which allows posting to it."""
    return f"{url[1]}/{MASK}" if "hook" in url[0].lower() else url[0]
