"""When a server must not start, and who is in which list."""

from __future__ import annotations

import re

import pytest

from core.configuration import Configuration, Hosting, SignIn, configuration
from core.errors import ConfigurationError
from core.hosting import socket_owner, start
from core.hosting.people import role_of

PASSWORD = SignIn(editor_password="correct horse")
HEADER = {"header": "X-Forwarded-User", "editors": ("@example.org",)}
OIDC = {
    "oidc_issuer": "https://id.example.org",
    "oidc_client_id": "ulpscope",
    "oidc_client_secret": "s",
    "viewers": ("*",),
}
PUBLIC = {"public_url": "https://ulpscope.example.org"}
PROXY = {"trusted_proxies": ("10.0.0.0/8",), "proxy_secret": "shared-with-the-proxy"}


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "127.3.2.1", "::1", "[::1]", "localhost", "LOCALHOST", "unix:///run/ulpscope"]
)
def test_without_a_sign_in_it_starts_on_this_machine(address):
    start.check(Configuration(), {}, address)


@pytest.mark.parametrize(
    "address",
    [
        "",
        None,
        "0.0.0.0",
        "::",
        "10.0.0.5",
        "192.168.1.2",
        "example.org",
        "127.0.0.1.example.org",
        "localhost.example.org",
    ],
)
def test_without_a_sign_in_it_starts_nowhere_else_and_says_what_to_set(address):
    with pytest.raises(ConfigurationError, match="ULPSCOPE_SIGN_IN_EDITOR_PASSWORD") as refused:
        start.check(Configuration(), {}, address)
    assert str(refused.value).count("\n") == 0
    start.check(Configuration(sign_in=PASSWORD), {}, address)  # with one it does


@pytest.mark.parametrize(
    ("sign_in", "hosting", "about"),
    [
        ({}, PUBLIC, "no sign-in"),
        ({"editor_password": "short"}, {}, "editor_password has 5 characters"),
        ({"viewer_password": "scrypt$no"}, {}, "viewer_password begins with"),
        ({"viewer_password": "the same one", "editor_password": "the same one"}, {}, "are the same"),
        ({"tokens": True, "attempts": 0}, {}, "must be more than 0"),
        ({"tokens": True, "sign_ins": 0}, {}, "must be more than 0"),
        (HEADER, {}, "trusted_proxies is empty"),
        (HEADER | {"editors": ()}, PROXY, "nobody would get in"),
        (HEADER | {"header": "X Bad"}, PROXY, "name of a header"),
        (HEADER | {"header": "X_Forwarded_User"}, PROXY, "name of a header"),
        (HEADER | {"header": "X-ULPscope-Identity"}, PROXY, "name of a header"),
        (HEADER, PROXY | {"proxy_secret": ""}, "proxy_secret is not"),
        (HEADER, PROXY | {"proxy_secret": "15 characters.."}, "expected 16 to 256"),
        (HEADER, PROXY | {"proxy_secret": "x" * 257}, "has 257 characters"),
        (HEADER, PROXY | {"proxy_secret": 'sixteen letters";'}, "of A to Z"),
        ({"tokens": True}, {"proxy_secret": "short"}, "has 5 characters"),
        (HEADER, {"trusted_proxies": ("10.0.0.1/8",)}, "neither an address nor a network"),
        (HEADER, {"trusted_proxies": ("proxy.example.org",)}, "neither an address nor a network"),
        (OIDC, {}, "public_url"),
        (OIDC | {"oidc_client_secret": ""}, PUBLIC, "oidc_client_secret is not"),
        (OIDC | {"viewers": ()}, PUBLIC, "nobody would get in"),
        (OIDC | {"oidc_issuer": "http://id.example.org"}, PUBLIC, "https://"),
        (OIDC, {"public_url": "http://ulpscope.example.org"}, "https://"),
        ({"tokens": True}, {"public_url": "https://example.org/ulpscope"}, "expected https://HOST"),
        ({"tokens": True}, {"public_url": "example.org"}, "expected https://HOST"),
        ({"tokens": True}, {"frame_ancestors": ("https://x.org; script-src *",)}, "no origin"),
        ({}, {"frame_ancestors": ("*",)}, "no origin"),
    ],
)
def test_a_configuration_that_does_not_hold_is_refused_in_a_sentence(sign_in, hosting, about):
    with pytest.raises(ConfigurationError, match=about) as refused:
        start.check(Configuration(sign_in=SignIn(**sign_in), hosting=Hosting(**hosting)), {}, "127.0.0.1")
    for secret in ("the same one", "scrypt$no", "15 characters..", "sixteen letters"):
        assert secret not in str(refused.value)


def test_without_a_secret_the_lines_that_the_proxy_needs_are_said_with_one_that_would_do():
    def refused() -> str:
        with pytest.raises(ConfigurationError) as error:
            start.check(
                Configuration(
                    sign_in=SignIn(**HEADER | {"header": "X-Strange-User"}),
                    hosting=Hosting(trusted_proxies=("10.0.0.1",)),
                ),
                {},
            )
        return str(error.value)

    said = refused()
    offered = re.search(r'proxy_set_header X-ULPscope-Proxy-Secret "([^"]{32})";', said)
    assert offered
    assert f'proxy_secret = "{offered[1]}"' in said
    assert "proxy_set_header X-Strange-User $remote_user;" in said
    assert "ULPSCOPE_HOSTING_PROXY_SECRET" in said
    assert refused() == said  # for a server that reads its settings every second says it once
    hosting = Hosting(trusted_proxies=("10.0.0.1",), proxy_secret=offered[1])
    start.check(Configuration(sign_in=SignIn(**HEADER), hosting=hosting), {})


def test_a_sign_in_without_a_header_needs_no_secret():
    start.check(Configuration(sign_in=PASSWORD, hosting=Hosting(trusted_proxies=("10.0.0.1",))), {})


@pytest.mark.parametrize(
    ("text", "mode", "environment", "names"),
    [
        ('[sign_in]\neditor_password = "correct horse"', 0o644, {}, "[sign_in] editor_password"),
        ('[sign_in]\neditor_password = "correct horse"', 0o604, {}, "[sign_in] editor_password"),
        (
            '[hosting]\nproxy_secret = "x"\n[sign_in]\noidc_client_secret = "y"',
            0o644,
            {},
            "proxy_secret, [sign_in] oidc",
        ),
        ('[sign_in]\neditor_password = "correct horse"', 0o640, {}, ""),
        ('[sign_in]\neditor_password = "correct horse"', 0o600, {}, ""),
        ("[sign_in]\ntokens = true", 0o644, {}, ""),
        ("[sign_in]\ntokens = true", 0o644, {"ULPSCOPE_SIGN_IN_EDITOR_PASSWORD": "correct horse"}, ""),
    ],
)
def test_secrets_in_a_file_that_everybody_can_read_are_a_warning(text, mode, environment, names, tmp_path):
    path = tmp_path / "ulpscope.toml"
    path.write_text(text)
    path.chmod(mode)
    environment = environment | {"ULPSCOPE_CONFIG": str(path)}
    said = [each for each in start.warnings(configuration(environment), environment) if "can read" in each]
    assert len(said) == bool(names)
    assert not names or (names in said[0] and str(path) in said[0] and "chmod 600" in said[0])
    assert "horse" not in "".join(said)


def test_where_the_kernel_cannot_be_asked_a_server_without_a_sign_in_says_so(monkeypatch):
    for can, is_said in ((False, True), (True, False)):
        monkeypatch.setattr(socket_owner, "can_be_asked", lambda can=can: can)
        assert any("the kernel does not say" in each for each in start.warnings(Configuration(), {})) is is_said
        assert start.warnings(Configuration(sign_in=PASSWORD), {}) == []


@pytest.mark.parametrize(
    ("sign_in", "hosting"), [(HEADER, PROXY), (OIDC, PUBLIC), (HEADER | {"tokens": True}, PROXY | PUBLIC)]
)
def test_a_configuration_that_holds_starts(sign_in, hosting):
    start.check(Configuration(sign_in=SignIn(**sign_in), hosting=Hosting(**hosting)), {}, "0.0.0.0")


@pytest.mark.parametrize(
    ("value", "is_refused"),
    [("", False), ("127.0.0.1", False), ("127.0.0.1,::1", False), ("*", True), ("10.0.0.1", True)],
)
def test_another_word_for_whom_to_believe_is_refused(value, is_refused):
    found = Configuration(sign_in=PASSWORD)
    if is_refused:
        with pytest.raises(ConfigurationError, match="FORWARDED_ALLOW_IPS"):
            start.check(found, {"FORWARDED_ALLOW_IPS": value}, "127.0.0.1")
    else:
        start.check(found, {"FORWARDED_ALLOW_IPS": value}, "127.0.0.1")


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("ada@example.org", "editor"),
        ("Ada@Example.ORG", "editor"),
        ("grace@lab.example.org", "viewer"),
        ("grace", "viewer"),
        ("eve@example.com", None),
        ("eve@notlab.example.org", None),
        ("eve@sub.lab.example.org", None),
        ("eve@evil.com@lab.example.org", None),
        ("@lab.example.org", None),
        ("", None),
        (" ", None),
        ("ada@example.org\n", "editor"),  # a header's blanks are none of the name
        ("ada@exam\u200bple.org", None),
    ],
)
def test_who_is_in_which_list(name, role):
    lists = SignIn(editors=("ada@example.org",), viewers=("ada@example.org", "@lab.example.org", "grace"))
    assert role_of(name, lists) == role


def test_a_star_lets_everybody_in_and_an_empty_entry_nobody():
    assert role_of("anybody", SignIn(viewers=("*",))) == "viewer"
    assert role_of("anybody@x.org", SignIn(viewers=("", "@", " "))) is None
