"""The configuration file and its environment variables: every setting, its default, its
refusals.
"""

from pathlib import Path

import pytest
from msgspec.structs import fields

from core.configuration import Configuration, as_json, configuration, variable_of
from core.errors import ConfigurationError


def said(tmp_path, text, **environment):
    path = tmp_path / "server.toml"
    path.write_text(text)
    return configuration({"ULPSCOPE_CONFIG": str(path), **environment})


def test_without_a_file_all_is_at_its_default(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = configuration({})
    assert found == Configuration()
    assert not found.sign_in.is_configured


def test_the_file_in_the_working_directory_counts_unless_another_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("ulpscope.toml").write_text("[limits]\nfile_bytes = 3\n")
    assert configuration({}).limits.file_bytes == 3
    assert said(tmp_path, "[limits]\nfile_bytes = 4\n").limits.file_bytes == 4


def test_the_environment_overrides_every_setting_of_the_file(tmp_path):
    """A value of each type; and no setting is left that a variable does not reach."""
    text = (
        '[sign_in]\ntokens = false\nmembers = ["a@x.org"]\nsession_hours = 1\nheader = "X-User"\n'
    )
    found = said(
        tmp_path,
        text,
        ULPSCOPE_SIGN_IN_TOKENS="true",
        ULPSCOPE_SIGN_IN_MEMBERS="b@x.org, @y.org",
        ULPSCOPE_SIGN_IN_SESSION_HOURS="2.5",
        ULPSCOPE_SIGN_IN_HEADER="X-Other",
    ).sign_in
    assert found.tokens
    assert found.members == ("b@x.org", "@y.org")
    assert found.session_hours == 2.5
    assert found.header == "X-Other"
    for section in ("limits", "hosting", "sign_in"):
        for each in fields(getattr(Configuration(), section)):
            default = getattr(getattr(Configuration(), section), each.name)
            other = "7" if not isinstance(default, bool) else "true"
            changed = said(tmp_path, "", **{variable_of(section, each.name): other})
            assert getattr(getattr(changed, section), each.name) != default


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[limit]\nfile_bytes = 1", "'limit' is not a section"),
        ("[limits]\nfile_byte = 1", "unknown field `file_byte`"),
        ("limits = 3", "Expected `object`"),
        ('[limits]\nfile_bytes = "much"', r"Expected `int`.*file_bytes"),
        ("[limits]\nfile_bytes = -1", "Expected `int` >= 0"),
        ("[sign_in]\nsession_hours = inf", "session_hours"),
        ("[sign_in]\nsession_hours = nan", "session_hours"),
        ('[sign_in]\ntokens = "perhaps"', "Expected `bool`"),
        ("[sign_in]\nmembers = 3", "Expected `array`"),
        ("[sign_in", "cannot be read as a configuration"),
    ],
)
def test_what_is_not_understood_is_refused_with_a_sentence(tmp_path, text, sentence):
    with pytest.raises(ConfigurationError, match=sentence) as refusal:
        said(tmp_path, text)
    assert "\n" not in str(refusal.value).strip()


def test_a_misspelt_variable_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match=r"unknown field `file_byte`; ULPSCOPE_LIMITS_\\*"):
        said(tmp_path, "", ULPSCOPE_LIMITS_FILE_BYTE="1")


def test_a_named_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="named by ULPSCOPE_CONFIG"):
        configuration({"ULPSCOPE_CONFIG": str(tmp_path / "none.toml")})


def test_a_secret_is_never_quoted_nor_printed(tmp_path):
    found = said(tmp_path, '[sign_in]\npassword = "hunter2"\noidc_client_secret = "s3cret"\n')
    assert "hunter2" not in str(as_json(found))
    assert "s3cret" not in str(as_json(found))
    assert as_json(found)["sign_in"]["password"] is True
    with pytest.raises(ConfigurationError) as refusal:
        said(tmp_path, "[sign_in]\npassword = 48151623\n")
    assert "48151623" not in str(refusal.value)
    assert "hunter2" not in repr(found.sign_in)
