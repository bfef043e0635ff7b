"""`serve` and its options that end at once."""

import io
import json
import os
import sys
from pathlib import Path

import pytest

from core.commands import serve
from core.hosting import credentials

PASSWORD = "correct horse"


@pytest.fixture
def executed(monkeypatch):
    """What the process would have become."""
    calls = []
    monkeypatch.setattr(
        serve.os,
        "execve",
        lambda program, command, environment: calls.append((command, environment)),
    )
    return calls


def test_it_refuses_to_be_open_without_a_sign_in(cli, executed, tmp_path):
    """tests/core/hosting/test_hosting.py has the addresses."""
    assert "does not listen on example.org" in cli("serve", "--address", "example.org").refusal
    assert executed == []
    assert not (tmp_path / "runs").exists()


def test_it_becomes_streamlits_server_on_the_address_that_was_checked(
    cli,
    executed,
    monkeypatch,
    tmp_path,
):
    (tmp_path / "ulpscope.toml").write_text("[sign_in]\ntokens = true\n")
    # the server runs in another folder, where a relative path would lead elsewhere
    monkeypatch.setenv("ULPSCOPE_CONFIG", os.path.relpath(tmp_path / "ulpscope.toml"))
    monkeypatch.setenv("ULPSCOPE_SIGN_IN_PASSWORD", PASSWORD)
    done = cli("serve", "--address", "0.0.0.0", "--port", "8600", "--read-only")
    ((command, environment),) = executed
    assert command[1:4] == ["-m", "streamlit", "run"]
    assert command[command.index("--server.address") + 1] == "0.0.0.0"
    assert command[command.index("--server.port") + 1] == "8600"
    assert Path(environment["ULPSCOPE_STORE"]).is_absolute()
    assert Path(environment["ULPSCOPE_CONFIG"]).is_absolute()
    assert environment["ULPSCOPE_HOSTING_READ_ONLY"] == "1"
    assert "sign-in: password, tokens" in done.stderr
    assert "no tokens yet" in done.stderr
    assert PASSWORD not in done.stderr + str(command)


def test_a_token_is_made_listed_and_revoked(cli):
    text = cli("serve", "--token", "ada").stdout.strip()
    assert text.startswith("ulp_")
    listed = cli("serve", "--check", "--json").stdout
    assert json.loads(listed)["token_names"] == ["ada"]
    assert text not in listed
    assert cli("serve", "--token", "ada").returncode == 2
    assert cli("serve", "--revoke", "ada").returncode == 0
    assert cli("serve", "--revoke", "ada").returncode == 2


def test_a_password_is_hashed_from_a_pipe(cli, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{PASSWORD}\n"))
    assert credentials.is_password(cli("serve", "--hash-password").stdout.strip(), PASSWORD)
    monkeypatch.setattr(sys, "stdin", io.StringIO("short\n"))
    assert cli("serve", "--hash-password").returncode == 2


def test_check_shows_settings_without_secrets_and_fails_if_no_server_would_start(cli, monkeypatch):
    monkeypatch.setenv("ULPSCOPE_SIGN_IN_PASSWORD", PASSWORD)
    done = cli("serve", "--check", "--address", "0.0.0.0", "--json").succeeded()
    settings = done.json
    assert settings["sign_in"]["password"] is True
    assert settings["problem"] is None
    assert PASSWORD not in done.stdout + cli("serve", "--check").stdout
    monkeypatch.setenv("ULPSCOPE_SIGN_IN_HEADER", "X-Forwarded-User")
    assert "members is empty" in cli("serve", "--check").stderr
    assert cli("serve", "--check").returncode == 2
