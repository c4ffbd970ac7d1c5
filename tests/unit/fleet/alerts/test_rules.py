"""Rules files: what they may say, and the sentence with the line for what they may not."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from headway.errors import UsageError
from headway.fleet.alerts import rules
from headway.fleet.alerts.delivery import CHANNEL_KINDS as CHANNELS
from headway.fleet.alerts.rules import COMMON_KEYS, KIND_KEYS, read_rules
from headway.fleet.metrics import ALERT_METRICS
from headway.fleet.queries.dimensions import Filter
from headway.fleet.queries.queries import QUERIES
from tests.support import Golden, has_code

pytestmark = pytest.mark.timeout(60)
DOCS = Path(__file__).parents[4] / "docs" / "alerts.md"
RULE = '[[rule]]\nname = "a"\n'
ETT = RULE + 'kind = "threshold"\nmetric = "ett"\nbelow = 85\n'
MAIL = ETT + '[to.x]\nemail = ["a@b"]\nsender = "a@b"\nhost = "h"\n'


def test_the_file_of_the_docs_is_read_as_it_is_meant(golden: Golden) -> None:
    text = DOCS.read_text().split("```toml\n")[1].split("```")[0]
    found = read_rules(text, "rules.toml")
    golden("rules.txt", "".join(f"{rule.describe()}\n" for rule in found.rules))
    ads, starts, changed = found.rules
    assert (ads.metric, ads.below, ads.where, ads.by) == ("ett", 85, (("team", "ads"),), ("model",))
    assert (starts.metric, starts.above, starts.for_s, starts.window) == (
        "tts_p90",
        300,
        7200,
        7200,
    )
    assert (changed.of, changed.receivers) == (("slices", "running", "hosts"), ("chat",))
    assert found.rules[0].repeat_interval == 4 * 3600
    assert set(found.channels) == {"oncall", "mail", "chat"}


@pytest.mark.parametrize(
    ("text", "code", "line", "key"),
    [
        ("", "rules-empty", None, None),
        ("rule = 3", "rules-not-a-list", 1, None),
        ("to = 3\n" + ETT, "channels-not-tables", 1, None),
        ("x = 1\n" + ETT, "rule-key-unknown", 1, "x"),
        (RULE, "rule-key-missing", 1, "kind"),
        ('[[rule]]\nkind = "burn"', "rule-key-missing", 1, "name"),
        (RULE + 'kind = "no"', "rule-value-invalid", 3, "kind"),
        (ETT + 'belw = "x"', "rule-key-unknown", 6, "belw"),
        (ETT + "points = 1", "rule-key-unknown", 6, "points"),
        (ETT + "above = 3", "rule-limit-ambiguous", 1, None),
        (RULE + 'kind = "threshold"\nmetric = "etx"', "rule-value-invalid", 4, "metric"),
        (RULE + 'kind = "threshold"', "rule-key-missing", 1, "metric"),
        (ETT.replace("85", '"5min"'), "rule-value-invalid", 5, "below"),
        (ETT.replace("85", "nan"), "rule-value-invalid", 5, "below"),
        (ETT + 'for = "2 hours"', "rule-value-invalid", 6, "for"),
        (ETT + "for = 2", "rule-value-invalid", 6, "for"),
        (ETT + 'over = "0s"', "rule-value-invalid", 6, "over"),
        (ETT + 'severity = "high"', "rule-value-invalid", 6, "severity"),
        (ETT + 'to = "x"', "rule-value-invalid", 6, "to"),
        (ETT + 'by = "week"', "rule-value-invalid", 6, "by"),
        (ETT + 'where = "team"', "rule-value-invalid", 6, "where"),
        (ETT + '[rule.where]\ntaem = "x"', "rule-key-unknown", 7, "taem"),
        (ETT + "[rule.where]\nteam = 3", "rule-value-invalid", 7, "team"),
        (ETT + "least_jobs = 0", "rule-value-invalid", 6, "least_jobs"),
        (ETT + ETT, "rule-name-duplicate", 7, None),
        (ETT.replace("threshold", "burn"), "rule-burn-too-short", 1, None),
        (RULE + 'kind = "change"\nlevel = 1', "rule-value-invalid", 4, "level"),
        (RULE + 'kind = "change"\nof = ["x"]', "rule-value-invalid", 4, "of"),
        (ETT + "[to.x]\n", "channel-kind-ambiguous", 6, None),
        (ETT + '[to.x]\nwebhook = "ftp://h"', "channel-value-invalid", 7, "webhook"),
        (
            ETT + '[to.x]\nwebhook = "http://h"\nheaders = 3',
            "channel-value-invalid",
            8,
            "headers",
        ),
        (ETT + '[to.x]\nwebhook = "http://h"\nurl = 3', "rule-key-unknown", 8, "url"),
        (ETT + '[to.x]\ncommand = "ls -l"', "channel-invalid", 6, None),
        (
            ETT + '[to.x]\ncommand = ["a"]\ntimeout_s = 0',
            "channel-value-invalid",
            8,
            "timeout_s",
        ),
        (ETT + '[to.x]\nemail = "a@b"', "channel-value-invalid", 7, "email"),
        (MAIL + 'password = "abc"', "channel-value-invalid", 10, "password"),
        (MAIL + 'password = "env:P"', "channel-invalid", 6, None),
        (MAIL + 'user = "u"\npassword = "env:P"\ntls = "none"', "channel-invalid", 6, None),
        (ETT + '[to.x]\nemail = ["a@b"]\nhost = "h"', "channel-key-missing", 6, "sender"),
        ("[[rule]", "toml-invalid", None, None),
    ],
)
def test_what_is_wrong_is_one_sentence_with_its_line(
    text: str, code: str, line: int | None, key: str | None
) -> None:
    with pytest.raises(UsageError, check=has_code(code)) as error:
        read_rules(text, "r")
    assert (error.value.fields.get("line"), error.value.fields.get("key")) == (line, key)
    assert "\n" not in str(error.value)


def test_a_key_that_is_nearly_right_is_guessed() -> None:
    with pytest.raises(UsageError) as error:
        read_rules(ETT + 'belw = "x"', "r")
    assert error.value.fields["near"] == "below"


VALUES = ("3", "-1", "true", "nan", "inf", "1e400", "2026-01-01", '""', '"x"', '"2h"', '"env:X"')
NESTED = ("[]", "[1]", '["x"]', "[[]]", "{}", "{ a = 1 }", '{ team = "x" }', "[{}]")


def test_whatever_stands_there_is_read_or_told() -> None:
    rules = [(RULE + 'kind = "change"\n', KIND_KEYS["change"]), (ETT, KIND_KEYS["threshold"])]
    texts = [
        "\n".join(line for line in text.splitlines() if not line.startswith(f"{key} ="))
        + f"\n{key} = {value}"
        for text, own in rules
        for key in (*COMMON_KEYS, *own)
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
            read_well += bool(read_rules(text, "r").rules)
        except UsageError as error:
            assert "\n" not in str(error) and error.code and error.fields["line"], text
    # Of either rule: 3 names, 4 times, 2 of where, no by, no to. Of a change: no of, points,
    # history; of a threshold two limits and least_jobs. Of channels: env:X as URL, and one command.
    assert read_well == (3 + 4 + 2 + 1 + 1) * 2 + 3 + 3 + 2


def test_a_line_is_found_behind_texts_that_look_like_keys() -> None:
    text = 'a = """\nb = 1\n"""\n\n# b = 2\nlist = [\n  1,\n]\nb = 3\n'
    assert rules.line_of(text, ("b",)) == 9
    assert rules.line_of(text, ("list",)) == 6
    assert rules.line_of(text, ("a",)) == 1


@pytest.mark.parametrize("name", ALERT_METRICS)
def test_every_figure_is_a_column_of_its_answer(name: str) -> None:
    import ibis

    from headway.fleet.schema import TABLES
    from headway.fleet.store.arrow import arrow_schema

    figure = ALERT_METRICS[name]
    tables = {
        one: ibis.table(ibis.Schema.from_pyarrow(arrow_schema(table)), name=one)
        for one, table in TABLES.items()
    }
    assert figure.column in QUERIES[figure.query].build(tables, Filter(("team",))).columns
