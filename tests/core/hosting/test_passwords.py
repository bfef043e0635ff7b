"""Shared passwords: the scrypt form, the clear form, and what is refused."""

from __future__ import annotations

import base64
import hmac

import pytest

from core.hosting import passwords

# RFC 7914, section 12: scrypt("pleaseletmein", "SodiumChloride", N=16384, r=8, p=1), of which the first 32 bytes are
# the first block.
RFC_7914 = bytes.fromhex("7023bdcb3afd7348461c06cd81fd38ebfda8fbba904f8e3ea9b543f6545da1f2")
STORED = f"scrypt$16384$8$1${base64.b64encode(b'SodiumChloride').decode()}${base64.b64encode(RFC_7914).decode()}"


def test_the_scrypt_form_takes_the_password_of_the_rfc():
    assert passwords.is_right(STORED, "pleaseletmein")
    assert not passwords.is_right(STORED, "pleaseletmeim")
    assert passwords.complaint(STORED) is None


def test_what_is_hashed_is_right_and_does_not_give_the_password_away():
    first, second = passwords.hashed("correct horse"), passwords.hashed("correct horse")
    assert first != second  # a salt each
    assert "correct" not in first
    assert passwords.is_right(first, "correct horse")
    assert not passwords.is_right(first, "correct  horse")
    assert not passwords.is_right(first, first)  # the stored form is no password


@pytest.mark.parametrize(
    ("stored", "given", "is_right"),
    [
        ("pässwörter", "pässwörter", True),
        ("pässwörter", "passworter", False),
        ("", "", False),
        ("", "anything", False),
        ("x" * 2000, "x" * 2000, False),  # longer than is looked at
        ("scrypt$1$2$3$broken", "scrypt$1$2$3$broken", False),  # a damaged hash is no password in the clear
    ],
)
def test_a_password_in_the_clear_is_right_only_where_it_is_the_same(stored, given, is_right):
    assert passwords.is_right(stored, given) is is_right


@pytest.mark.parametrize(
    ("stored", "complains"),
    [
        ("", False),
        ("long enough", False),
        ("short", True),
        ("scrypt$", True),
        (STORED.replace("16384", "16383"), True),  # N is a power of two
        (STORED.replace("16384", "16777216"), True),  # 16 GB a try
        (STORED[:-1], True),
    ],
)
def test_a_password_that_cannot_be_used_is_refused_without_being_quoted(stored, complains):
    said = passwords.complaint(stored)
    assert (said is not None) is complains
    assert not stored or stored == "scrypt$" or said is None or stored not in said


def test_comparisons_are_constant_in_time(monkeypatch):
    """Every comparison goes through hmac.compare_digest, which looks at all bytes."""
    compared = []
    real = hmac.compare_digest
    monkeypatch.setattr(passwords.hmac, "compare_digest", lambda a, b: compared.append((a, b)) or real(a, b))
    assert passwords.is_right("in the clear", "in the clear")
    assert not passwords.is_right("in the clear", "i")
    assert passwords.is_right(STORED, "pleaseletmein")
    assert len(compared) == 3
    assert all(len(a) == len(b) == 32 for a, b in compared)  # of equal length whatever was typed
