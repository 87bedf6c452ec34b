"""No secret gets through, and little else is masked."""

import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_trainer.tracking.loggers.redaction import is_secret_name, redact, without_secrets


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("GET with Authorization: Bearer abc.def-123 failed", "GET with Authorization: *** failed"),
        ("{'authorization': 'Basic cGs6c2s=', 'x': 1}", "{'authorization': '***', 'x': 1}"),
        ("sent Bearer eyJhbGciOi.J9 to", "sent Bearer *** to"),
        ("headers Basic%20cGs6c2tsZg==", "headers Basic%20***"),
        ("https://me:pass word@host/x", "https://me:pass word@host/x"),  # no address has a space
        ("https://me:p4ss@host/x?y=1", "https://***@host/x?y=1"),
        ("key sk-proj-abcdefgh12345 is wrong", "key *** is wrong"),
        ("pk-lf-1234567890 and opk_1234567890", "*** and ***"),
        ('{"api_key": "abc", "n": 3}', '{"api_key": "***", "n": 3}'),
        ("?access_token=abc&page=2", "?access_token=***&page=2"),
        ("basic authentication is a bearer standard", "basic authentication is a bearer standard"),
        ("step 3: loss 0.5, a task-specific risk", "step 3: loss 0.5, a task-specific risk"),
    ],
)
def test_what_looks_like_a_secret_is_masked(words, shown):
    assert redact(words) == shown


@pytest.mark.parametrize(
    ("names", "secret"),
    [
        ("WANDB_API_KEY OPENAI_API_KEY MY_OWN_TOKEN db_password AWS_SECRET_ACCESS_KEY", True),
        ("ART_SERVER_PORT WANDB_BASE_URL KEYBOARD TOKENIZERS_PARALLELISM", False),
    ],
)
def test_values_of_secret_variables_are_masked(names, secret, monkeypatch):
    for name in names.split():
        with monkeypatch.context() as patch:
            patch.setenv(name, "hunter2-hunter2")
            assert is_secret_name(name) is secret
            assert redact("say hunter2-hunter2!") == ("say ***!" if secret else "say hunter2-hunter2!")


def test_a_short_value_is_not_taken_for_a_secret(monkeypatch):
    monkeypatch.setenv("A_KEY", "1")
    assert redact("based on 1") == "based on 1"


def test_secret_settings_are_left_out_however_deep():
    settings = {"model": "m", "judge_args": {"api_key": "x", "budget": {"max_cost": 5}}, "token": "y"}
    assert without_secrets(settings) == {"model": "m", "judge_args": {"budget": {"max_cost": 5}}}


@given(st.text(min_size=6).filter(lambda s: len(s.strip()) >= 6 and "*" not in s), st.text(), st.text())
def test_a_secret_of_the_environment_never_gets_through(secret, before, after):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.environ", {"A_KEY": secret})
        for form in (secret.strip(), quote(secret.strip(), safe=""), json.dumps(secret.strip())[1:-1]):
            masked = redact(f"{before} {form} {after}")
            assert form not in masked or form in redact(before) + redact(after)
