"""Secrets are masked where their name or format identifies them, and nothing else is."""

from __future__ import annotations

import json
import re
import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway import redact
from tests.support import examples

# Passwords, without characters that end them in a shell, URL or header; not the mask itself, and
# not a port and path of a URL.
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
SECRETS = st.builds(
    "{}{}{}".format,
    st.text(_LETTERS, min_size=4, max_size=12),
    st.text(_LETTERS + "!$%*+,-./:;<=>@^_{}|~()[]", min_size=1, max_size=20),
    st.text(_LETTERS, min_size=4, max_size=12),
).filter(lambda secret: redact.MASK not in secret and not re.match(r"\d{1,5}/", secret))
NAMES = st.sampled_from(
    [
        "api-key", "api_key", "apiKey", "API_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID",
        "AWS_SESSION_TOKEN", "HF_TOKEN", "WANDB_API_KEY", "PGPASSWORD", "password", "db.password",
        "passwd", "MYSQL_PWD", "client_secret", "trainer.logger.token", "private-key", "AccountKey",
        "github_pat", "auth-token", "authToken", "credentials", "ssh_key", "X-Api-Key", "API_KEY_2",
        "HF_TOKEN_PROD", "OPENAI_KEY", "wandb_key", "KAGGLE_KEY", "db.pw", "creds", "jwt",
        "apiKey2",
    ]
)  # fmt: skip
ORDINARY = st.sampled_from(
    [
        "python", "train.py", "--lr", "0.1", "--tokenizer", "gpt2", "--max-tokens", "512", "a=b",
        "--pad-token", "<pad>", "--cache-key", "team.key", "--key-dim", "64", "--passes", "3",
        "https://example.com:8080/data@v1?step=5", "s3://bucket/ckpt", "git@github.com:a/b.git",
        "--monkey", "--keyboard=us", "--use_auth_token=True", "--token-file", "/t",
        "rank 0 raised KeyError: 'x'", "step: 100", "-m", "torch.distributed.run", "10:30:00",
        "pass_10=0.35", "--pass=2", "tokens: ['a']", "http://trainer-0:29500",
        "image:v1.2@sha256:ab", "llama:7b@main", "step:100@node-3.example.com", "http://a.example.com",
    ]
)  # fmt: skip
# The forms of a secret in a word of a command or in a text.
WORDS = st.sampled_from(
    [
        "--{name}={secret}", "{name}={secret}", "+model.{name}={secret}", "{name}: {secret}",
        "postgres://user:{quoted}@db.example.com:5432/runs", "redis://:{quoted}@cache/0",
        "https://user:{quoted}@example.com/a?b=c#d", "https://x.example/a?{name}={query}&step=5",
        "Authorization: Bearer {secret}", "Authorization: Basic {secret}", "Cookie: {secret}",
        "https://hooks.slack.com/services/{path}", "https://ci.example.com/webhook/{path}",
        '{{"{name}": {json}, "lr": 0.1}}', "{{'{name}': {repr}, 'lr': 0.1}}",
        '{{"{name}": [{json}, "b"]}}', "{{'{name}': [{repr}]}}", '{{"{name}": {{"x": {json}}}}}',
    ]
)  # fmt: skip


def _fill(form: str, name: str, secret: str) -> str:
    from urllib.parse import quote

    return form.format(
        name=name,
        secret=secret,
        quoted=secret.replace("'", ""),
        query=quote(secret, safe=""),
        path=quote(secret, safe="/"),
        json=json.dumps(secret),
        repr=repr(secret),
    )


def _leaks(secret: str, text: str) -> bool:
    """Whether a long part of the secret is visible."""
    from urllib.parse import quote

    return secret in text or quote(secret, safe="") in text or json.dumps(secret)[1:-1] in text


@settings(max_examples=examples(500), deadline=None)
@given(before=st.lists(ORDINARY, max_size=4), after=st.lists(ORDINARY, max_size=4),
       form=WORDS, name=NAMES, secret=SECRETS)  # fmt: skip
def test_no_word_of_a_command_leaks(
    before: list[str], after: list[str], form: str, name: str, secret: str
) -> None:
    command = ["python", *before, "x", _fill(form, name, secret), *after]
    masked = redact.words(command)
    assert not any(_leaks(secret, word) for word in masked)
    assert redact.words(masked) == masked
    place = len(before) + 2
    assert masked[:place] == command[:place] and masked[place + 1 :] == command[place + 1 :]


@settings(max_examples=examples(300), deadline=None)
@given(before=st.lists(ORDINARY, max_size=4), after=st.lists(ORDINARY, max_size=4),
       name=NAMES, secret=SECRETS, dashes=st.sampled_from(["-", "--"]))  # fmt: skip
def test_the_word_after_a_flag_is_masked(
    before: list[str], after: list[str], name: str, secret: str, dashes: str
) -> None:
    command = ["python", *before, "x", f"{dashes}{name}", secret, *after]
    assert redact.words(command) == [*command[: len(before) + 3], redact.MASK, *after]
    line = redact.line(shlex.join(command))
    assert not _leaks(secret, line) and redact.line(line) == line


@settings(max_examples=examples(500), deadline=None)
@given(before=ORDINARY, after=ORDINARY, form=WORDS, name=NAMES, secret=SECRETS)
def test_no_text_leaks(before: str, after: str, form: str, name: str, secret: str) -> None:
    text = f"{before} {_fill(form, name, secret)} {after}"
    masked = redact.text(text)
    assert not _leaks(secret, masked)
    assert masked.startswith(f"{before} ") and masked.endswith(f" {after}")
    assert redact.text(masked) == masked


@given(st.lists(ORDINARY, max_size=8))
def test_what_is_no_secret_stays(words: list[str]) -> None:
    assert redact.words(words) == words
    assert redact.line(shlex.join(words)) == shlex.join(words)
    for word in words:
        assert redact.text(word) == word


@settings(max_examples=examples(500), deadline=None)
@given(st.text())
def test_masking_any_text_twice_changes_nothing_more(text: str) -> None:
    once = redact.text(text)
    assert redact.text(once) == once


@pytest.mark.parametrize(
    "token",
    [
        "sk-proj-abcdefghijklmnopqrst",
        "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
        "hf_abcdefghijklmnopqrstuvwxyz",
        "xoxb-123456789012-abcdefghij",
        "AKIAIOSFODNN7EXAMPLE",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcdefghij",
    ],
)
def test_tokens_of_a_known_form_are_masked_without_a_name(token: str) -> None:
    assert token[-6:] not in redact.text(f"the server refused {token} at once")[:-8]
    assert redact.text(token) == redact.MASK


def test_a_private_key_is_masked_over_its_lines() -> None:
    key = "-----BEGIN RSA PRIVATE KEY-----\nabc\ndef\n-----END RSA PRIVATE KEY-----"
    assert redact.text(f"x {key} y") == f"x -----BEGIN RSA PRIVATE KEY-----{redact.MASK} y"


def test_user_and_password_are_masked_without_scheme_or_end() -> None:
    for text in (
        "cannot connect to trainer:S3cret@db.example.com/runs",
        "proxy=job:S3cret@proxy:3128",
        "root:S3cret@tcp(10.0.0.1)/runs",
        "refused by postgres://trainer:S3cre",  # cut
    ):
        masked = redact.text(text)
        assert "S3cre" not in masked and redact.MASK in masked
        assert redact.text(masked) == masked


def test_data_is_masked_by_the_names_of_its_fields() -> None:
    record = {
        "ev": "spawn",
        "t": 5,
        "command": ["train", "--token", "abc-def"],
        "set": {"HF_TOKEN": "abc-def", "OMP_NUM_THREADS": "2"},
        "nested": [{"url": "s3://key:abc-def@bucket"}],
    }
    assert "abc-def" not in json.dumps(redact.data(record))
    assert redact.data(record)["set"]["OMP_NUM_THREADS"] == "2"
    below = {"passwords": ["abc-def", ["abc-def"]], "credentials": {"a": "abc-def", "n": 5}}
    assert "abc-def" not in json.dumps(redact.data(below))
    assert redact.data(below)["credentials"]["n"] == 5
    assert redact.data(redact.data(record)) == redact.data(record)


def test_a_hostile_text_takes_time_in_proportion_to_its_length() -> None:
    for part in ("://a:", "token=", "-----BEGIN PRIVATE KEY-----", "--password ", 'pw=["', "a:'"):
        assert isinstance(redact.text(part * 20_000), str)
