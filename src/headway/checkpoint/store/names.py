"""What the folders of a store are called, and what a name says."""

from __future__ import annotations

import re
import secrets

from headway.checkpoint.store.manifest import ID
from headway.errors import UsageError

LATEST = "latest"
LOCK = "lock"  # in a draft: held by all who write it
OWNER = "owner-"  # in a draft behind a URL: who writes it
ANCHOR = "anchor"  # in a checkpoint that is pinned
LAST_STEP = 10**10 - 1

STEP = re.compile(r"step-(\d{10})")
REMOTE_STEP = re.compile(rf"step-(\d{{10}})-({ID})")
DRAFT = re.compile(rf"\.draft-(\d{{10}})-({ID})")
ASIDE = re.compile(rf"\.aside-(\d{{10}})-({ID})")
GIVEN_UP = re.compile(rf"\.given-up-(\d{{10}})-({ID})")
TRASH = re.compile(r"\.trash-\d{10}-[0-9a-f]+")
NEW = re.compile(r"\.new-.+")  # a file that was to replace another


def step(number: int) -> str:
    """A checkpoint."""
    return f"step-{_checked(number):010}"


def remote_step(number: int, save_id: str) -> str:
    """A checkpoint behind a URL, and its draft."""
    return f"{step(number)}-{_checked_id(save_id)}"


def draft(number: int, save_id: str) -> str:
    """A checkpoint that is being written."""
    return f".draft-{_checked(number):010}-{_checked_id(save_id)}"


def aside(number: int, save_id: str) -> str:
    """A checkpoint that was replaced by another save of its step."""
    return f".aside-{_checked(number):010}-{_checked_id(save_id)}"


def given_up(number: int, save_id: str) -> str:
    """The mark of a save that will never be a checkpoint."""
    return f".given-up-{_checked(number):010}-{_checked_id(save_id)}"


def trash(number: int) -> str:
    """What is being deleted."""
    return f".trash-{_checked(number):010}-{secrets.token_hex(8)}"


def _checked(number: int) -> int:
    if not 0 <= number <= LAST_STEP:
        raise UsageError(
            f"a step is between 0 and {LAST_STEP}, not {number}",
            code="step-out-of-range",
            step=number,
        )
    return number


def _checked_id(save_id: str) -> str:
    if re.fullmatch(ID, save_id) is None:
        raise UsageError(
            f"a save id is 1 to 64 letters, digits, - and _, not {save_id!r}",
            code="save-id-invalid",
        )
    return save_id
