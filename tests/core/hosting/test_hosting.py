"""Passwords, tokens, the list of members, and when a server must not start."""

import stat

import pytest

from core.configuration import Configuration, Hosting, SignIn
from core.errors import ConfigurationError, UsageError
from core.hosting import credentials, start, tokens

PASSWORD = "correct horse"
# argon2id of "password" with the salt "somesalt", by the reference implementation
# (github.com/P-H-C/phc-winner-argon2).
REFERENCE = "$argon2id$v=19$m=65536,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc"
OIDC = {
    "oidc_issuer": "https://id.example.org",
    "oidc_client_id": "a",
    "oidc_client_secret": "b",
    "members": ("*",),
}
PUBLIC = {"public_url": "https://ulpscope.example.org"}


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "127.3.2.1", "::1", "[::1]", "localhost", "LOCALHOST"],
)
def test_without_a_sign_in_it_starts_on_this_machine(address):
    start.check(Configuration(), address)


@pytest.mark.parametrize(
    "address",
    [
        "",
        None,
        "0.0.0.0",
        "::",
        "10.0.0.5",
        "example.org",
        "127.0.0.1.example.org",
        "localhost.example.org",
    ],
)
def test_without_a_sign_in_it_starts_nowhere_else(address):
    with pytest.raises(ConfigurationError, match="ULPSCOPE_SIGN_IN_PASSWORD"):
        start.check(Configuration(), address)
    start.check(Configuration(sign_in=SignIn(password=PASSWORD)), address)


@pytest.mark.parametrize(
    ("sign_in", "hosting", "about"),
    [
        ({}, PUBLIC, "no sign-in"),
        ({"password": "short"}, {}, "has 5 characters"),
        ({"password": "$argon2id$no"}, {}, "not a hash"),
        ({"tokens": True, "session_hours": 0.0}, {}, "session_hours"),
        ({"tokens": True}, {"public_url": "ulpscope.example.org"}, "public_url"),
        ({"tokens": True}, {"public_url": "https://h/path"}, "public_url"),
        ({"header": "X-Forwarded-User", "members": ("*",)}, {}, "proxy_secret"),
        ({"header": "X-Forwarded-User"}, {"proxy_secret": "x" * 16}, "members is empty"),
        (OIDC | {"members": ()}, PUBLIC, "members is empty"),
        (OIDC | {"oidc_client_secret": ""}, PUBLIC, "oidc_client_secret"),
        (OIDC, {}, "public_url"),
        (OIDC | {"oidc_issuer": "http://id.example.org"}, PUBLIC, "https://"),
    ],
)
def test_a_sign_in_that_cannot_work_does_not_start(sign_in, hosting, about):
    with pytest.raises(ConfigurationError, match=about) as refused:
        start.check(Configuration(sign_in=SignIn(**sign_in), hosting=Hosting(**hosting)))
    assert PASSWORD not in str(refused.value)


def test_complete_sign_ins_start_anywhere():
    header = SignIn(header="X-Forwarded-User", members=("*",))
    start.check(Configuration(sign_in=header, hosting=Hosting(proxy_secret="x" * 16)), "0.0.0.0")
    start.check(Configuration(sign_in=SignIn(**OIDC), hosting=Hosting(**PUBLIC)), "0.0.0.0")


@pytest.mark.parametrize(
    ("configured", "typed", "is_right"),
    [
        (REFERENCE, "password", True),
        (REFERENCE, "passwort", False),
        (PASSWORD, PASSWORD, True),
        (PASSWORD, PASSWORD + " ", False),
        (PASSWORD, "", False),
        (REFERENCE, REFERENCE, False),
    ],
)
def test_passwords(configured, typed, is_right):
    assert credentials.is_password(configured, typed) is is_right


def test_a_hash_does_not_tell_the_password_and_costs_what_rfc_9106_recommends():
    stored = credentials.hash_password(PASSWORD)
    assert PASSWORD not in stored
    # 64 MiB and three passes, the second recommendation of RFC 9106
    assert stored.startswith("$argon2id$v=19$m=65536,t=3,")
    assert credentials.password_problem(stored) is None


@pytest.mark.parametrize(
    ("name", "members", "is_one"),
    [
        ("ada@example.org", ("@example.org",), True),
        ("Ada@Example.org ", ("ada@example.ORG",), True),
        ("ada", ("*",), True),
        ("ada", ("ada",), True),
        ("ada", ("@example.org", ""), False),
        ("", ("*", ""), False),
        ("ada@evil@example.org", ("@example.org", "*"), False),
        ("ada@sub.example.org", ("@example.org",), False),
        ("ada@example.org.evil", ("@example.org",), False),
        ("@example.org", ("@example.org",), False),
        # the Kelvin sign, which lower() turns into k
        ("\u212aate@example.org", ("kate@example.org",), False),
        ("ada\x00@example.org", ("@example.org",), False),
    ],
)
def test_members(name, members, is_one):
    assert credentials.is_member(name, members) is is_one


def test_a_token_is_stored_as_its_digest_for_its_owner_alone(tmp_path):
    text = tokens.add(tmp_path, "ada")
    path = tmp_path / ".hosting" / "tokens.json"
    assert text not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert tokens.name_of(tmp_path, text) == "ada"
    assert tokens.name_of(tmp_path, text[:-1]) is None
    assert tokens.name_of(tmp_path, "") is None
    with pytest.raises(UsageError, match="already"):
        tokens.add(tmp_path, "ada")
    tokens.revoke(tmp_path, "ada")
    assert tokens.name_of(tmp_path, text) is None
    with pytest.raises(UsageError, match="no token"):
        tokens.revoke(tmp_path, "ada")


@pytest.mark.parametrize(
    "name",
    ["", " ", "a b", "a\n", "../x", "x" * 65, "<b>"],
)
def test_a_name_that_cannot_be_read_names_no_token(tmp_path, name):
    with pytest.raises(UsageError, match="cannot name"):
        tokens.add(tmp_path, name)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"[" * 100_000,
        b"\xff",
        b'{"ad\xe9": "0"}',
        b'[{"name": "ada", "role": "viewer"}]',
    ],
)
def test_a_damaged_file_of_tokens_lets_nobody_in(tmp_path, body):
    tokens.add(tmp_path, "ada")
    (tmp_path / ".hosting" / "tokens.json").write_bytes(body)
    with pytest.raises(ConfigurationError, match=r"tokens\.json"):
        tokens.name_of(tmp_path, "ulp_x")


def test_the_key_of_cookies_is_made_once_and_for_the_server_alone(tmp_path):
    key = tokens.cookie_key(tmp_path)
    assert len(key) == 64
    assert tokens.cookie_key(tmp_path) == key
    path = tmp_path / ".hosting" / "key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text("short")
    with pytest.raises(ConfigurationError, match="not a key"):
        tokens.cookie_key(tmp_path)
