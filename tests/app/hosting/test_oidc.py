"""Signing in by OpenID Connect, against a provider that can misbehave."""

from urllib.parse import urlsplit

import httpx2
import pytest

from tests.app.hosting import provider as providers
from tests.app.hosting.provider import CLIENT, SECRET
from tests.app.hosting.serving import URL, browser


@pytest.fixture(scope="module")
def running():
    with providers.running() as made:
        yield made


@pytest.fixture
def provider(running):
    running.claims, running.faults = {"email": "ada@example.org", "email_verified": True}, set()
    return running


def client_of(provider, *members):
    return browser(
        public_url=URL,
        oidc_issuer=provider.url,
        oidc_client_id=CLIENT,
        oidc_client_secret=SECRET,
        members=members or ("@example.org",),
    )


def way_back(client, target="/flips?run=a"):
    """The address to which the provider sends the browser back."""
    left = client.get("/sign-in/oidc", params={"next": target})
    assert left.status_code == 302, left.text
    back = httpx2.get(left.headers["location"]).headers["location"]
    assert back.startswith(f"{URL}/sign-in/callback?")
    return back.removeprefix(URL)


def test_a_member_gets_in_and_back_to_the_link(provider):
    client = client_of(provider)
    entered = client.get(way_back(client))
    assert entered.status_code == 303
    assert entered.headers["location"] == "/flips?run=a"
    assert client.get("/x").json()["member"] == "ada@example.org"
    elsewhere = client_of(provider, "grace@example.org")  # the list is asked at every use
    elsewhere.cookies.update(client.cookies)
    assert elsewhere.get("/x").status_code == 401


@pytest.mark.parametrize(
    ("claims", "status"),
    [
        ({"email": "eve@example.com"}, 403),
        ({"email": "eve@evil@example.org"}, 403),
        ({"email_verified": False}, 403),
        ({"email_verified": None}, 403),
        ({"email_verified": "true"}, 403),
        ({"email_verified": 1}, 403),
        ({"email": None}, 403),
        ({"aud": "another"}, 400),
        ({"iss": "https://evil.example"}, 400),
        ({"nonce": "another"}, 400),
        ({"exp": 1}, 400),
    ],
)
def test_claims_that_let_nobody_in(provider, claims, status):
    provider.claims |= claims
    client = client_of(provider)
    assert client.get(way_back(client)).status_code == status
    assert client.get("/x").status_code == 401


@pytest.mark.parametrize(
    "fault",
    ["other key", "unsigned", "client's secret", "no token"],
)
def test_a_token_that_the_provider_did_not_sign(provider, fault):
    provider.faults = {fault}
    client = client_of(provider)
    assert client.get(way_back(client)).status_code == 400
    assert client.get("/x").status_code == 401


def test_an_answer_counts_once_and_in_the_browser_that_asked(provider):
    client = client_of(provider)
    other = client_of(provider)
    back = way_back(client)
    assert other.get(back).status_code == 400
    assert client.get(back).status_code == 303
    assert client.get(back).status_code == 400


def test_the_way_back_leads_nowhere_else(provider):
    client = client_of(provider)
    assert client.get(way_back(client, "//evil.example")).headers["location"] == "/"


def test_a_provider_that_is_gone_is_a_sentence(provider):
    client = browser(
        public_url=URL,
        # nothing listens on the port of the discard service
        oidc_issuer="http://127.0.0.1:9",
        oidc_client_id="a",
        oidc_client_secret="b",
        members=("*",),
    )
    answer = client.get("/sign-in/oidc")
    assert answer.status_code == 502
    assert urlsplit(provider.url).hostname not in answer.text
