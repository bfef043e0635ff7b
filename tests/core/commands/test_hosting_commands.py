"""`serve`, `tokens`, `hash-password`, `configuration`, `audit` on the command line."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path

import pytest

from core.commands import serve
from core.hosting import passwords
from core.runs.store import audit

PASSWORD = "correct horse"


@pytest.fixture
def store(tmp_path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def executed(monkeypatch) -> list[tuple]:
    """What the process would have become."""
    found: list[tuple] = []

    def execve(program: str, command: list[str], environment: dict[str, str]) -> None:
        found.append((command, environment, Path.cwd()))

    monkeypatch.setattr(serve.os, "execve", execve)
    return found


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.0.2.7", "example.org"])
def test_serve_refuses_to_be_open_without_a_sign_in(cli, executed, address, store):
    done = cli("serve", "--address", address)
    assert done.returncode == 2
    assert f"does not listen on {address}" in done.stderr
    assert done.stderr.count("\n") == 1
    assert executed == []
    assert not store.exists()


def test_serve_becomes_streamlits_server_on_the_address_that_was_checked(cli, executed, monkeypatch, tmp_path, store):
    monkeypatch.setenv("ULPSCOPE_SIGN_IN_EDITOR_PASSWORD", PASSWORD)
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "127.0.0.1")
    monkeypatch.setenv("ULPSCOPE_STORE", os.path.relpath(store))
    done = cli("serve", "--address", "0.0.0.0", "--port", "8600")
    assert done.returncode == 0
    ((command, environment, directory),) = executed
    assert command[1:4] == ["-m", "streamlit", "run"]
    assert command[command.index("--server.address") + 1] == "0.0.0.0"
    assert command[command.index("--server.port") + 1] == "8600"
    assert environment["FORWARDED_ALLOW_IPS"] == ""  # uvicorn believes nobody: trusted_proxies does
    assert Path(environment["ULPSCOPE_STORE"]).is_absolute()
    assert Path(environment["ULPSCOPE_STORE"]).resolve() == store.resolve()
    assert (directory / ".streamlit" / "config.toml").exists()  # the theme and the address of the repository
    assert "http://0.0.0.0:8600" in done.stderr
    assert "sign-in: password" in done.stderr
    assert PASSWORD not in done.stderr + str(command)


def test_serve_says_what_is_missing_for_signing_in_with_tokens(cli, executed, monkeypatch):
    monkeypatch.setenv("ULPSCOPE_SIGN_IN_TOKENS", "1")
    assert "there is no token yet" in cli("serve").stderr
    cli("tokens", "add", "ada")
    assert "there is no token yet" not in cli("serve").stderr
    assert len(executed) == 2


def test_serve_takes_its_configuration_along(cli, executed, monkeypatch, tmp_path):
    (tmp_path / "ulpscope.toml").write_text(
        '[hosting]\npublic_url = "https://ulpscope.example.org"\n[sign_in]\ntokens = true\n'
    )
    monkeypatch.setattr(serve, "FILE_NAME", str(tmp_path / "ulpscope.toml"))
    monkeypatch.setenv("ULPSCOPE_CONFIG", str(tmp_path / "ulpscope.toml"))
    assert "https://ulpscope.example.org" in cli("serve").stderr
    assert executed[0][1]["ULPSCOPE_CONFIG"] == str(tmp_path / "ulpscope.toml")


HEADER = {
    "ULPSCOPE_SIGN_IN_HEADER": "X-Strange-User",
    "ULPSCOPE_SIGN_IN_EDITORS": "*",
    "ULPSCOPE_HOSTING_TRUSTED_PROXIES": "127.0.0.1",
}


def test_serve_refuses_a_header_without_a_secret_and_says_the_lines_of_its_proxy(cli, executed, monkeypatch, store):
    for name, value in HEADER.items():
        monkeypatch.setenv(name, value)
    refused = cli("serve")
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
    assert "proxy_set_header X-Strange-User $remote_user;" in refused.stderr
    assert executed == []
    assert not store.exists()
    monkeypatch.setenv("ULPSCOPE_HOSTING_PROXY_SECRET", "shared-with-the-proxy")
    said = cli("serve").stderr
    assert "    proxy_set_header X-Strange-User $remote_user;\n" in said
    assert "    proxy_set_header X-ULPscope-Proxy-Secret " in said
    assert "shared-with-the-proxy" not in said
    assert len(executed) == 1


def test_serve_asks_for_a_token_only_when_it_is_told_to_and_not_beside_a_sign_in(cli, executed, monkeypatch):
    assert cli("serve").returncode == 0
    assert "ULPSCOPE_HOSTING_LOCAL_TOKEN" not in executed[0][1]
    assert cli("serve", "--token").returncode == 0
    assert executed[1][1]["ULPSCOPE_HOSTING_LOCAL_TOKEN"] == "1"
    monkeypatch.setenv("ULPSCOPE_SIGN_IN_EDITOR_PASSWORD", PASSWORD)
    refused = cli("serve", "--token")
    assert refused.returncode == 2
    assert "this one has password" in refused.stderr
    assert len(executed) == 2


def test_a_token_is_made_listed_and_revoked_and_written_down(cli, store):
    done = cli("tokens", "add", "ada", "--role", "editor", "--days", "7")
    text = done.stdout.strip()
    assert text.startswith("ulp_")
    assert "not switched on" in done.stderr
    listed = cli("tokens", "list", "--json")
    assert [(token["name"], token["role"]) for token in json.loads(listed.stdout)] == [("ada", "editor")]
    assert text not in listed.stdout + cli("tokens", "list").stdout
    assert cli("tokens", "add", "ada").returncode == 2
    assert cli("tokens", "revoke", "ada").returncode == 0
    assert cli("tokens", "revoke", "ada").returncode == 2
    assert "no tokens" in cli("tokens", "list").stdout
    assert [event["what"] for event in audit.read(store, 9)] == ["token made", "token revoked"]
    assert text not in (store / ".audit" / "audit.jsonl").read_text()


def test_a_password_is_hashed_from_a_pipe(cli, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{PASSWORD}\n"))
    stored = cli("hash-password").stdout.strip()
    assert passwords.is_right(stored, PASSWORD)
    monkeypatch.setattr(sys, "stdin", io.StringIO("short\n"))
    refused = cli("hash-password")
    assert refused.returncode == 2
    assert "short" not in refused.stderr


def test_the_configuration_is_shown_without_its_secrets_and_with_what_is_wrong_with_it(cli, monkeypatch):
    monkeypatch.setenv("ULPSCOPE_SIGN_IN_EDITOR_PASSWORD", PASSWORD)
    said = json.loads(cli("configuration", "--json").stdout)
    assert said["sign_in"]["editor_password"] is True
    assert said["complaint"] is None
    assert PASSWORD not in str(said) + cli("configuration").stdout
    assert said["warnings"] == []
    monkeypatch.setenv("ULPSCOPE_SIGN_IN_HEADER", "X-Forwarded-User")
    assert "nobody would get in" in json.loads(cli("configuration", "--json").stdout)["complaint"]
    assert "would not start" in cli("configuration").stderr


def test_the_audit_log_is_shown_with_nothing_in_it_alive(cli, store):
    assert "nothing yet" in cli("audit").stdout
    audit.record(store, "[red]eve[/red]\x1b[2J", "delete", "run-1", entry="x")
    audit.record(store, "ada", "restore", "run-1")
    shown = cli("audit").stdout
    assert "[red]eve" in shown
    assert "\x1b[2J" not in shown
    assert [event["what"] for event in json.loads(cli("audit", "--json", "--last", "1").stdout)] == ["restore"]


def test_the_audit_log_is_shown_from_files_put_aside_too(cli, store, monkeypatch):
    monkeypatch.setenv("ULPSCOPE_HOSTING_AUDIT_BYTES", "1")
    for number in range(4):
        audit.record(store, "ada", "capture", job=number)
    assert len(list((store / ".audit").glob("audit-*.jsonl"))) == 3
    assert [event["job"] for event in json.loads(cli("audit", "--json").stdout)] == [0, 1, 2, 3]
    assert [event["job"] for event in json.loads(cli("audit", "--json", "--last", "2").stdout)] == [2, 3]


def test_deleting_on_the_command_line_is_written_down(cli, store):
    cli("ingest", "tests/cases/flips_fp16.npz")
    run_id = json.loads(cli("list", "--json").stdout)[0]["run_id"]
    assert cli("delete", run_id, "--yes").returncode == 0
    event = audit.read(store, 1)[0]
    assert (event["what"], event["run_id"]) == ("delete for good", run_id)
    assert "command line" in event["who"]
