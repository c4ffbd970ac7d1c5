"""The level of a line, and whether it states a fact, gives advice, or echoes a setting."""

from __future__ import annotations

import re

_HEAD = 120  # a level is near the start of a line
_LEVELS = (
    ("error", re.compile(r"\b(?:ERROR|CRITICAL|FATAL)\b[:\]|\s)-]|\[[EF]\b|\[[EF]\d|^[EF]\d{4} ")),
    (
        "error",
        re.compile(r"^(?:[\w./#+-]+: ){0,3}(?:line \d+: )?(?:fatal )?(?:[Ee]rror|fatal)\b[: ]"),
    ),
    ("error", re.compile(r"^\S+: line \d+: |^Fatal Python error|^\w+ fatal\s*:")),
    ("warning", re.compile(r"^wandb: |^warning: |\b(?:WARNING|WARN|\w*Warning)\b[:\]|\s)-]")),
    ("warning", re.compile(r"\[W\b|\[W\d|^W\d{4}")),
    ("info", re.compile(r"\b(?:INFO|DEBUG|NOTICE)\b[:\]|\s)-]|\[[ID]\b|\[[ID]\d|^I\d{4} ")),
)
_TRIED_AGAIN = re.compile(
    r"thrown while requesting|\b(?:will|going to) (?:retry|try again)\b", re.I
)
# Possibilities, advice and references: never what happened.
_ADVICE = re.compile(
    "|".join(
        (
            r"(?:might|may|could|can) (?:also )?(?:be|have been) (?:also )?(?:caused|due|triggered"
            r"|because|related|a result|the result|asynchronous|incorrect)",
            r"(?:possible|potential|common|likely|probable) (?:root )?(?:cause|reason)s?",
            r"it is possible that|in case of|would have|is expected\b|\bif (?:you|reserved)\b",
            r"(?:this|that|which|it|they) (?:error )?(?:can|may|might|could|usually|typically|often"
            r"|probably|generally|normally|is likely)\b",
            r"\b(?:can|may|might) (?:happen|occur|lead|result|cause|hang|fail|crash|run)\b",
            r"\byou (?:can|may|might|could|should|want|need|must|have to)\b(?!'t|not)",
            r"\btry (?:to|setting|reducing|increasing|using|running|again|with|a|lower|decrease)",
            r"^please\b|\bplease (?:try|check|make|see|set|use|refer|report|file|install|update"
            r"|consider|re)",
            r"\bif (?:this|that|the|it|either) .{0,40}(?:persist|happen|help|occur)",
            r"recommend|for debugging|make sure|\bsuggest|feel free|\bconsider\b",
            r"\bensure (?:that )?(?:you|the|your)|\bsee (?:also|https?|the doc)",
            r"^(?:hint|note|tip|advice|suggestion)s?\b|^compile with",
            r"to (?:avoid|enable|disable|suppress|silence|fix|resolve|work around|debug|prevent"
            r"|reduce)\b",
            r"^set(?:ting)? [`'\"]?[A-Z_]{6}|\(\d\) (?:the|ray|a) ",
            r"check (?:the|your|if|whether|that|for)\b",
            r"will (?:be )?(?:retr|skip|ignor|fall)|falling back|retrying|\bretry(?:ing)? in",
            r"ignoring\b|skipping\b(?! step)",
        )
    ),
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"(?<=[.!?;])\s+(?=[\"'(\[]?[A-Z(])")
_CLAUSE = re.compile(r" - |[,;:(] ?")
_FLAG = re.compile(r"""['"]?(?<![\w-])--?[a-zA-Z][\w-]*['"]?(?:[ =,]+['"]?[^\s,'"\]]+['"]?)?""")
# Echoes of a shell, of source code, of a configuration.
_ECHO = re.compile(
    "|".join(
        (
            r"^\s*(?:\+ |\$ |>>> |#|//|#SBATCH|Namespace\(|args? ?[:=])|^\S+\.\w+:\d+:\s*(?:#|//)",
            r"^\s*(?:export|set -\w+|source|alias|echo|python3?|torchrun|srun|sbatch|accelerate) ",
            r"^\s*(?:raise|except|elif|return|assert|def|class|import|from|with|try|logger|log"
            r"|print|warnings)\b[ (.:]",
            r"^\s*['\"]?[a-z_][\w.\-/]*['\"]?\s*[:=]\s*(?:['\"]|[\[{(](?=['\"\d\]})-])"
            r"|[\w.+\-/]+['\"]?,?\s*$|True|False|None|null)",
            r"^\s*[A-Z][A-Z0-9_]{2,}=\S*\s*$|^\s*[{\[(].*['\"]\s*:",
        )
    )
)


def level(text: str) -> str:
    """`error`, `warning`, `info` or empty: the first level in the head of the line."""
    if _TRIED_AGAIN.search(text):
        return "warning"
    head = text[:_HEAD]
    hits = [(hit.start(), name) for name, regex in _LEVELS if (hit := regex.search(head))]
    return min(hits)[1] if hits else ""


def strip_advice(text: str) -> str:
    """The line without its advice, and without the flags of a command that it repeats."""
    if "--" in text:
        text = _FLAG.sub(" ", text)
    if not _ADVICE.search(text):
        return text
    return " ".join(filter(None, map(_before_advice, _SENTENCE.split(text))))


def is_config_echo(text: str) -> bool:
    """Whether the line repeats a command, code or a setting instead of reporting an event."""
    return _ECHO.search(text) is not None


def _before_advice(sentence: str) -> str:
    """The part of a sentence before the clause with advice."""
    advice = _ADVICE.search(sentence)
    if advice is None:
        return sentence
    clauses = [hit.start() for hit in _CLAUSE.finditer(sentence, 0, advice.start())]
    return sentence[: clauses[-1]] if clauses else ""
