"""Shared passwords: the Argon2 form, the scrypt form of before, the clear form, and what is refused."""

from __future__ import annotations

import base64
import hmac
import re

import pytest

from core.hosting import passwords

# RFC 7914, section 12: scrypt("pleaseletmein", "SodiumChloride", N=16384, r=8, p=1), of which the first 32 bytes are
# the first block.
RFC_7914 = bytes.fromhex("7023bdcb3afd7348461c06cd81fd38ebfda8fbba904f8e3ea9b543f6545da1f2")
STORED = f"scrypt$16384$8$1${base64.b64encode(b'SodiumChloride').decode()}${base64.b64encode(RFC_7914).decode()}"

# test.c of the reference implementation (P-H-C/phc-winner-argon2): Argon2id, "password", "somesalt", 2 passes over
# 64 MiB, one lane.
REFERENCE = bytes.fromhex("09316115d5cf24ed5a15a31a3ba326e5cf32edc24702987c02b6566f61913cf7")
ARGON2 = "$".join(
    (
        "",
        "argon2id",
        "v=19",
        "m=65536,t=2,p=1",
        *(base64.b64encode(part).decode().rstrip("=") for part in (b"somesalt", REFERENCE)),
    )
)


def test_the_argon2_form_takes_the_password_of_the_reference_implementation():
    assert passwords.is_right(ARGON2, "password")
    assert not passwords.is_right(ARGON2, "passwore")
    assert passwords.complaint(ARGON2) is None


def test_what_is_hashed_costs_at_least_what_rfc_9106_recommends():
    cost = re.fullmatch(r"\$argon2id\$v=19\$m=(\d+),t=(\d+),p=\d+\$.{22}\$.{43}", passwords.hashed("correct horse"))
    assert int(cost[1]) >= 64 << 10
    assert int(cost[2]) >= 3


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
        (ARGON2[:-1], ARGON2[:-1], False),
        (ARGON2.replace("argon2id", "argon2i"), "password", False),
        (ARGON2.replace("t=2", "t=3"), "password", False),
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
        (ARGON2[:-1], True),
        (ARGON2.replace("argon2id", "argon2x"), True),
        (ARGON2.replace("v=19", "v=16"), True),
        (ARGON2.replace("m=65536", "m=4194304"), True),  # 4 GB a try
        (ARGON2.replace("m=65536", "m=7"), True),  # a lane has 8 KB
        (ARGON2.replace("t=2", "t=0"), True),
        (ARGON2.replace("t=2", "t=٢"), True),  # a digit, but not of ASCII
        (ARGON2.replace("p=1", "p=0"), True),
    ],
)
def test_a_password_that_cannot_be_used_is_refused_without_being_quoted(stored, complains):
    said = passwords.complaint(stored)
    assert (said is not None) is complains
    assert not stored or stored == "scrypt$" or said is None or stored not in said


def test_comparisons_are_constant_in_time(monkeypatch):
    """Every comparison of ours goes through hmac.compare_digest, which looks at all bytes, as argon2's own does."""
    compared = []
    real = hmac.compare_digest
    monkeypatch.setattr(passwords.hmac, "compare_digest", lambda a, b: compared.append((a, b)) or real(a, b))
    assert passwords.is_right("in the clear", "in the clear")
    assert not passwords.is_right("in the clear", "i")
    assert passwords.is_right(STORED, "pleaseletmein")
    assert len(compared) == 3
    assert all(len(a) == len(b) == 32 for a, b in compared)  # of equal length whatever was typed
