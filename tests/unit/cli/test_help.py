"""`--help` of every command at every level."""

from __future__ import annotations

import pytest

from headway.cli import VERBS, commands, main

COMMANDS = commands()


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main([*words, "--help"])
    out, err = capsys.readouterr()
    assert exit_.value.code == 0, err
    assert out.startswith(" ".join(("usage: headway", *words)))
    assert err == ""


def test_every_level_is_walked() -> None:
    assert {(), *((verb,) for verb in VERBS)} < set(COMMANDS)
    assert {("fleet", "ett"), ("schedule", "slurm"), ("simulate", "cluster")} < set(COMMANDS)
