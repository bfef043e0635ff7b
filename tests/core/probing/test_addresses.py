"""A hosted dashboard asks no address of its own network that its configuration does not name."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from core.errors import UsageError
from core.probing import addresses
from core.probing.addresses import PublicOnly, is_public, public_address, transport_for
from core.probing.client import Client, ProbeError
from core.probing.servers import find_server
from tests.core.probing import odd_server as odd


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1",
        "127.8.8.8",
        "10.0.0.5",
        "172.16.3.4",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "::",
        "fe80::1%eth0",
        "fc00::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "2002:7f00:1::",
        "64:ff9b::a00:1",
        "localhost",
    ],
)
def test_no_address_of_a_private_network_is_public(text: str) -> None:
    assert not is_public(text)


@pytest.mark.parametrize("text", ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111", "64:ff9b::808:808"])
def test_addresses_of_the_internet_are_public(text: str) -> None:
    assert is_public(text)


def named(monkeypatch: pytest.MonkeyPatch, *found: str) -> list[str]:
    """Names are looked up as these addresses; -> the names that were asked for."""
    asked: list[str] = []

    def look_up(host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]

    monkeypatch.setattr(addresses.socket, "getaddrinfo", look_up)
    return asked


def test_a_name_with_one_private_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    named(monkeypatch, "8.8.8.8", "10.0.0.1")
    with pytest.raises(ProbeError, match="private network"):
        public_address("rebinding.example.org", 80)


def test_nothing_is_sent_to_a_private_address(monkeypatch: pytest.MonkeyPatch) -> None:
    with odd.serving(odd.good) as (address, seen):
        client = Client(address, transport=PublicOnly())
        with pytest.raises(ProbeError, match="private network"):
            find_server(client)
        assert seen.asked == []


def test_the_connection_goes_to_the_address_that_was_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice looked up, a name could answer otherwise: the server here is found under a name that no resolver knows."""
    with odd.serving(odd.good) as (address, seen):
        asked = named(monkeypatch, "127.0.0.1")
        monkeypatch.setattr(addresses, "is_public", lambda _: True)
        port = address.rpartition(":")[2]
        server = find_server(Client(f"http://engine.invalid:{port}", transport=PublicOnly()))
        assert server.model == "odd"
        assert asked[0] == "engine.invalid"
        assert set(asked[1:]) <= {"engine.invalid", "127.0.0.1"}  # the address itself is asked for as well
        assert seen.hosts == {f"engine.invalid:{port}"}


@pytest.mark.parametrize(
    ("servers", "url", "kind"),
    [
        ("http://10.0.0.5:8000", "http://10.0.0.5:8000/v1", None),
        ("http://10.0.0.5:8000,*", "http://10.0.0.5:8000", None),
        ("*", "http://10.0.0.5:8000", PublicOnly),
        ("*", "https://api.example.org", PublicOnly),
        ("http://10.0.0.5:8000", "http://10.0.0.5:8001", UsageError),
        ("http://10.0.0.5:8000", "https://10.0.0.5:8000", UsageError),
        ("", "https://api.example.org", UsageError),
    ],
)
def test_the_configuration_says_what_may_be_asked(
    servers: str, url: str, kind: type | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ULPSCOPE_PROBING_SERVERS", servers)
    if kind is UsageError:
        with pytest.raises(UsageError, match="may not be probed"):
            transport_for(url)
    elif kind is None:
        assert transport_for(url) is None
    else:
        assert isinstance(transport_for(url), kind)


def test_a_guarded_command_sends_nothing_elsewhere(cli: Any, tmp_path: Any) -> None:
    with odd.serving(odd.good) as (address, seen):
        done = cli("probe", address, "--prompt", "x", "--guarded", "--store", tmp_path)
        assert done.returncode == 2
        assert "may not be probed" in done.stderr
        assert seen.asked == []
