"""Rules files: what they may say, and the sentence with the line for what they may not."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from headway.errors import UsageError
from headway.fleet.alerts import toml
from headway.fleet.alerts.channels import KINDS as CHANNELS
from headway.fleet.alerts.figures import FIGURES
from headway.fleet.alerts.read import EVERY, OWN, read
from headway.fleet.alerts.spans import seconds, span
from headway.fleet.queries import QUERIES
from headway.fleet.queries.slices import Asked

pytestmark = pytest.mark.timeout(60)
DOCS = Path(__file__).parents[4] / "docs" / "alerts.md"
RULE = '[[rule]]\nname = "a"\n'
ETT = RULE + 'kind = "threshold"\nmetric = "ett"\nbelow = 85\n'


def test_the_file_of_the_docs_is_read_as_it_is_meant() -> None:
    text = DOCS.read_text().split("```toml\n")[1].split("```")[0]
    found = read(text, "rules.toml")
    assert [rule.words() for rule in found.rules] == [
        "ads trains: threshold, ETT below 85.0 % of team=ads by model for 2h over 1d; "
        "critical, to oncall, mail",
        "ads starts: burn, TTS p90 above 5min of team=ads for 2h over 2h; warning, to oncall",
        "something changed: change, change of slices, running, hosts of all by team,model over 1w; "
        "warning, to chat",
    ]
    assert found.rules[0].renotify == 4 * 3600
    assert set(found.channels) == {"oncall", "mail", "chat"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "r has no [[rule]]; give it one"),
        ("rule = 3", "r line 1: rules are written as [[rule]]"),
        ("to = 3\n" + ETT, "r line 1: channels are written as [to.NAME]"),
        ("x = 1\n" + ETT, "r line 1: 'x' is not known here; known are rule, to"),
        (RULE, "r line 1: this rule has no 'kind'"),
        ('[[rule]]\nkind = "burn"', "r line 1: this rule has no 'name'"),
        (RULE + 'kind = "no"', "r line 3: 'kind' is 'no', but it must be one of threshold, change"),
        (ETT + 'belw = "x"', "r line 6: 'belw' is not known here; did you mean 'below'?"),
        (ETT + "points = 1", "r line 6: 'points' is not known here"),
        (ETT + "above = 3", "r line 1: a rule has either 'above' or 'below'"),
        (RULE + 'kind = "threshold"\nmetric = "etx"', "r line 4: 'metric' is 'etx', but it must"),
        (RULE + 'kind = "threshold"', "r line 1: this rule has no 'metric'"),
        (ETT.replace("85", '"5min"'), "r line 5: 'below' is '5min', but it must be a number"),
        (ETT.replace("85", "nan"), "r line 5: 'below' is nan, but it must be a number"),
        (ETT + 'for = "2 hours"', "r line 6: 'for' is '2 hours', but it must be a time such as"),
        (ETT + "for = 2", "r line 6: 'for' is 2, but it must be a time such as 5min, 2h or 7d"),
        (ETT + 'over = "0s"', "r line 6: 'over' must be above 0"),
        (ETT + 'severity = "high"', "r line 6: 'severity' is 'high', but it must be one of info,"),
        (ETT + 'to = "x"', "r line 6: 'to' is 'x', but it must be empty: no channel is defined"),
        (ETT + 'by = "week"', "r line 6: 'by' is 'week', but it must be names out of team"),
        (ETT + 'where = "team"', "r line 6: 'where' is written as { team ="),
        (ETT + '[rule.where]\ntaem = "x"', "r line 7: 'taem' is not known here; did you mean"),
        (ETT + "[rule.where]\nteam = 3", "r line 7: 'team' is 3, but it must be a text"),
        (ETT + "least_jobs = 0", "r line 6: 'least_jobs' is 0, but it must be 1 or more"),
        (ETT + ETT, "r line 7: there are two rules of the name 'a'"),
        (ETT.replace("threshold", "burn"), "r line 1: a burn needs a 'for' of 1h or more"),
        (RULE + 'kind = "change"\nlevel = 1', "r line 4: 'level' is 1, but it must be between 0"),
        (RULE + 'kind = "change"\nof = ["x"]', "r line 4: 'of' is ['x'], but it must be names out"),
        (ETT + "[to.x]\n", "r line 6: a channel has one of webhook, email, command"),
        (ETT + '[to.x]\nwebhook = "ftp://h"', "r line 7: 'webhook' must be a URL that begins with"),
        (ETT + '[to.x]\nwebhook = "http://h"\nheaders = 3', "r line 8: 'headers' must be names"),
        (ETT + '[to.x]\nwebhook = "http://h"\nurl = 3', "r line 8: 'url' is not known here"),
        (ETT + '[to.x]\ncommand = "ls -l"', "r line 6: a command is a list of words, or a text"),
        (ETT + '[to.x]\ncommand = ["a"]\ntimeout_s = 0', "r line 8: 'timeout_s' must be seconds"),
        (ETT + '[to.x]\nemail = "a@b"', "r line 7: 'email' must be a list of addresses"),
        (
            ETT + '[to.x]\nemail = ["a@b"]\nsender = "a@b"\nhost = "h"\npassword = "abc"',
            "r line 10: 'password' must name a variable of the environment, as env:NAME",
        ),
        (
            ETT + '[to.x]\nemail = ["a@b"]\nsender = "a@b"\nhost = "h"\npassword = "env:P"',
            "r line 6: 'user' and 'password' come together",
        ),
        (
            ETT + '[to.x]\nemail = ["a@b"]\nsender = "a@b"\nhost = "h"\nuser = "u"\n'
            'password = "env:P"\ntls = "none"',
            'r line 6: no password is sent with tls = "none"',
        ),
        (ETT + '[to.x]\nemail = ["a@b"]\nhost = "h"', "r line 6: this channel has no 'sender'"),
        ("[[rule]", "r is not valid TOML: "),
    ],
)
def test_what_is_wrong_is_one_sentence_with_its_line(text: str, why: str) -> None:
    with pytest.raises(UsageError) as told:
        read(text, "r")
    assert str(told.value).startswith(why) and "\n" not in str(told.value)


VALUES = ("3", "-1", "true", "nan", "inf", "1e400", "2026-01-01", '""', '"x"', '"2h"', '"env:X"')
NESTED = ("[]", "[1]", '["x"]', "[[]]", "{}", "{ a = 1 }", '{ team = "x" }', "[{}]")


def test_whatever_stands_there_is_read_or_told() -> None:
    rules = [(RULE + 'kind = "change"\n', OWN["change"]), (ETT, OWN["threshold"])]
    texts = [
        "\n".join(line for line in text.splitlines() if not line.startswith(f"{key} ="))
        + f"\n{key} = {value}"
        for text, own in rules
        for key in (*EVERY, *own)
        for value in (*VALUES, *NESTED)
    ]
    channels = [
        f"{ETT}[to.x]\n{key.name} = {value}"
        for kind in CHANNELS.values()
        for key in fields(kind)
        for value in (*VALUES, *NESTED)
    ]
    read_well = 0
    for text in (*texts, *channels):
        try:
            read_well += bool(read(text, "r").rules)
        except UsageError as error:
            assert "\n" not in str(error) and str(error).startswith("r line "), text
    # Of either rule: 3 names, 4 times, 2 of where, no by, no to. Of a change: no of, points,
    # history; of a threshold two limits and least_jobs. Of channels: env:X as URL, and one command.
    assert read_well == (3 + 4 + 2 + 1 + 1) * 2 + 3 + 3 + 2


def test_a_line_is_found_behind_texts_that_look_like_keys() -> None:
    text = 'a = """\nb = 1\n"""\n\n# b = 2\nlist = [\n  1,\n]\nb = 3\n'
    assert toml.line(text, ("b",)) == 9
    assert toml.line(text, ("list",)) == 6
    assert toml.line(text, ("a",)) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [("45s", "45s"), ("90s", "1.5min"), ("5min", "5min"), ("2h", "2h"), ("36h", "1.5d")],
)
def test_times_are_said_in_few_words(text: str, said: str) -> None:
    assert span(seconds(text) or 0.0) == said


def test_a_time_that_is_not_round_is_said_nearly() -> None:
    assert [span(value) for value in (0.0, 12.34, 333.3, 1234.5, 12345.6)] == [
        "0.0s",
        "12.3s",
        "333.3s",
        "20.6min",
        "3.4h",
    ]


@pytest.mark.parametrize("text", ["5", "5m", "h", "-1h", "1h30min", 5, None, ""])
def test_what_is_no_time_is_none(text: object) -> None:
    assert seconds(text) is None


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_a_column_of_its_answer(name: str) -> None:
    import ibis

    from headway.fleet.arrow import arrow_schema
    from headway.fleet.schema import TABLES

    figure = FIGURES[name]
    tables = {
        one: ibis.table(ibis.Schema.from_pyarrow(arrow_schema(table)), name=one)
        for one, table in TABLES.items()
    }
    assert figure.column in QUERIES[figure.question].ask(tables, Asked(("team",))).columns
