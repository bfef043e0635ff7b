"""Tokens: what is kept of them, who they let in, and that several processes lose none."""

from __future__ import annotations

import hashlib
import json
import math
import stat
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from core.errors import ConfigurationError, UsageError
from core.hosting import private, tokens

ROOT = Path(__file__).resolve().parents[3]


def test_only_the_digest_of_256_random_bits_is_kept(tmp_path):
    text, made = tokens.add(tmp_path, "ada", "editor", 30)
    assert len(text.removeprefix("ulp_")) == math.ceil(256 / 6)
    kept = (tmp_path / ".hosting" / "tokens.json").read_text()
    assert text not in kept
    assert text.removeprefix("ulp_") not in kept
    assert json.loads(kept)[0]["sha256"] == hashlib.sha256(text.encode()).hexdigest()
    assert made.expires - made.created == timedelta(days=30)


def test_files_and_directory_are_for_their_owner_alone(tmp_path):
    tokens.add(tmp_path, "ada", "viewer", 0)
    private.secret(tmp_path)
    folder = tmp_path / ".hosting"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    (folder / "tokens.json").chmod(0o644)  # somebody's backup tool
    assert tokens.listed(tmp_path)
    assert stat.S_IMODE((folder / "tokens.json").stat().st_mode) == 0o600


def test_a_token_lets_in_until_it_is_revoked_or_over(tmp_path, monkeypatch):
    text, _ = tokens.add(tmp_path, "ada", "editor", 1)
    known = tokens.Tokens(tmp_path)
    digest = tokens.digest_of(text)
    assert known.of_digest(digest).name == "ada"
    assert known.of_digest(tokens.digest_of("ulp_" + "A" * 43)) is None
    later = datetime.now(UTC) + timedelta(days=1, seconds=1)
    monkeypatch.setattr(
        tokens, "datetime", type("Later", (datetime,), {"now": classmethod(lambda cls, zone=None: later)})
    )
    assert known.of_digest(digest) is None
    monkeypatch.undo()
    assert known.of_digest(digest) is not None
    tokens.revoke(tmp_path, "ada")
    assert known.of_digest(digest) is None


@pytest.mark.parametrize(
    "text", ["", "ulp_", "ulp_" + "A" * 42, "ulp_" + "A" * 44, "ULP_" + "A" * 43, "ulp_" + "A" * 42 + "!"]
)
def test_what_cannot_be_a_token_is_not_looked_up(text):
    assert tokens.digest_of(text) is None


@pytest.mark.parametrize(
    ("name", "role", "days"),
    [
        ("", "viewer", 1),
        ("a\nb", "viewer", 1),
        ("<b>", "viewer", 1),
        ("x" * 65, "viewer", 1),
        ("ada", "admin", 1),
        ("ada", "viewer", -1),
    ],
)
def test_what_a_token_cannot_be_is_refused_and_nothing_is_written(tmp_path, name, role, days):
    with pytest.raises(UsageError):
        tokens.add(tmp_path, name, role, days)
    assert not (tmp_path / ".hosting" / "tokens.json").exists()


def test_names_are_given_once(tmp_path):
    tokens.add(tmp_path, "ada", "viewer", 1)
    with pytest.raises(UsageError, match="already"):
        tokens.add(tmp_path, "Ada", "editor", 1)
    with pytest.raises(UsageError, match="no token"):
        tokens.revoke(tmp_path, "eve")
    assert [token.role for token in tokens.listed(tmp_path)] == ["viewer"]


@pytest.mark.parametrize("body", [b"", b"{", b"{}x", b"[1]", b'[{"name": "a"}]', b"\xff", b"[" * 100_000])
def test_a_damaged_file_lets_nobody_in_and_is_not_written_over(tmp_path, body):
    text, _ = tokens.add(tmp_path, "ada", "editor", 1)
    path = tmp_path / ".hosting" / "tokens.json"
    path.write_bytes(body)
    assert tokens.Tokens(tmp_path).of_digest(tokens.digest_of(text)) is None
    with pytest.raises(ConfigurationError, match="no token is valid"):
        tokens.add(tmp_path, "eve", "editor", 1)
    assert path.read_bytes() == body


def test_a_link_in_place_of_the_file_is_not_followed(tmp_path):
    (tmp_path / ".hosting").mkdir()
    elsewhere = tmp_path / "elsewhere.json"
    elsewhere.write_text("[]")
    (tmp_path / ".hosting" / "tokens.json").symlink_to(elsewhere)
    with pytest.raises(ConfigurationError, match="no token is valid"):
        tokens.listed(tmp_path)


_MAKE = """
import sys
from pathlib import Path
from core.hosting import private, tokens
print(private.secret(Path(sys.argv[1])).hex())
for number in range(5):
    tokens.add(Path(sys.argv[1]), f"{sys.argv[2]} {number}", "viewer", 1)
"""


def test_processes_that_make_tokens_at_once_lose_none_and_share_one_secret(tmp_path):
    command = [sys.executable, "-c", _MAKE, str(tmp_path)]
    makers = [
        subprocess.Popen([*command, name], cwd=ROOT, stdout=subprocess.PIPE, text=True) for name in ("a", "b", "c")
    ]
    secrets = {maker.communicate(timeout=300)[0].strip() for maker in makers}
    assert len(secrets) == 1
    assert len(tokens.listed(tmp_path)) == 15


def test_random_bits_of_tokens_are_spread_evenly(tmp_path, monkeypatch):
    """A twin: a generator that is no generator is caught by the same count."""

    def most_frequent() -> float:
        made = [tokens.PREFIX + tokens.secrets.token_urlsafe(32) for _ in range(200)]
        counts = Counter("".join(text[4:46] for text in made))
        return max(counts.values()) / sum(counts.values())

    assert most_frequent() < 3 / 64
    monkeypatch.setattr(tokens.secrets, "token_urlsafe", lambda size: "ab" * 22)
    assert most_frequent() > 3 / 64
