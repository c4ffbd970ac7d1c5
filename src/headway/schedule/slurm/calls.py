"""The programs of Slurm, and whether this user may do what is asked of them."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable

from headway.errors import SlurmRefused, UsageError

RunCommand = Callable[..., str]  # a program and its words; what it answers
PROGRAMS = ("squeue", "scontrol", "sacctmgr", "scancel")
TIMEOUT_S = 60.0  # seconds that a busy slurmctld may take
ADMIN_LEVELS = ("Administrator", "Operator")
MAX_NAMES = 20  # names in a sentence


def run_command(*words: str) -> str:
    """What a program of Slurm answers."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise SlurmRefused(
            f"{words[0]} gave no answer within {TIMEOUT_S:g} s; is slurmctld up?",
            code="slurm-timeout",
        ) from None
    if done.returncode:
        told = (done.stderr or done.stdout).strip().splitlines() or ["no word"]
        raise SlurmRefused(
            f"`{' '.join(words[:4])}` failed: {told[-1]}", code="slurm-refused", reason=told[-1]
        )
    return done.stdout


def check_programs(path: str | None = None) -> None:
    """One sentence where there is no Slurm."""
    absent = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    if absent:
        raise UsageError(
            f"there is no {', '.join(absent)} here; run this where slurmctld runs, "
            "with Slurm's programs on PATH",
            code="slurm-not-installed",
            programs=absent,
        )


def check_rights(ask: RunCommand, config: str, user: str | None = None) -> None:
    """One sentence where this user may not requeue the jobs of others."""
    name = user or getpass.getuser()
    found = re.search(r"^SlurmUser\s*=\s*([^\s(]+)", config, re.MULTILINE)
    if (user is None and os.geteuid() == 0) or (found is not None and found[1] == name):
        return
    level = ask("sacctmgr", "-nP", "show", "user", name, "format=AdminLevel").strip()
    if level not in ADMIN_LEVELS:
        raise UsageError(
            f"{name} may not requeue the jobs of others; run this as root or SlurmUser, or type: "
            f"sacctmgr modify user {name} set AdminLevel=Operator",
            code="slurm-no-rights",
            user=name,
        )


def check_accounts(ask: RunCommand, names: Iterable[str]) -> None:
    """One sentence where a quota is given to nobody: the account that is meant would have none."""
    known = ask("sacctmgr", "-nP", "show", "account", "format=Account").split()
    for name in names:
        if name not in known:
            raise UsageError(
                f"--quota has {name!r}, which is no account; there are {_join_names(known)}",
                code="account-unknown",
                account=name,
            )


def _join_names(names: list[str]) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(sorted(names)[:MAX_NAMES]) + more
