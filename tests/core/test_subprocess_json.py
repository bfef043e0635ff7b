"""A process that says JSON: what it says, how it ends, and that it ends."""

import pytest

from core import subprocess_json
from core.subprocess_json import Child

STAYS = 'import signal; print(\'{"stage": "begun"}\', flush=True); signal.pause()'
STUBBORN = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    f" {STAYS.removeprefix('import signal; ')}"
)
WARNING = "Warning: compiling failed to be quick"


def child(program, **bounds):
    return Child(["-c", program], **bounds)


@pytest.mark.parametrize(
    ("program", "sentence"),
    [
        ("sys.exit('noise\\nerror: no such model.\\nmore noise')", "no such model."),
        ("sys.exit('Traceback\\nKeyError')", "it ended with exit code 1: KeyError"),
        ("sys.exit(3)", "it ended with exit code 3."),
        (f"print({WARNING!r}, file=sys.stderr); sys.exit(3)", "it ended with exit code 3."),
        (
            f"sys.stderr.write({WARNING!r}); sys.stderr.flush(); os.kill(os.getpid(), 14)",
            "it ended by SIGALRM.",
        ),
        ("os.kill(os.getpid(), 9)", "it ended by SIGKILL, probably out of memory."),
    ],
)
def test_what_was_wrong_is_one_sentence(program, sentence):
    with child(f"import os, sys; {program}") as process:
        assert list(process.messages()) == []
    assert process.sentence == sentence
    assert process.code != 0


@pytest.mark.parametrize("may_ask", [False, True])
def test_no_secret_is_in_the_environment_of_a_process_that_reads_files_of_others(
    may_ask,
    monkeypatch,
):
    """One that may get a model has what the hub needs, and never what signs in to this server."""
    own = ("ULPSCOPE_SIGN_IN_PASSWORD", "ULPSCOPE_SIGN_IN_OIDC_CLIENT_SECRET", "ULPSCOPE_TOKEN")
    others = ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "DATABASE_URL", "HTTPS_PROXY", "SSH_AUTH_SOCK")
    plain = ("ULPSCOPE_STORE", "ULPSCOPE_LIMITS_FILE_BYTES", "OMP_NUM_THREADS", "LC_ALL", "PATH")
    for name in (*own, *others, *plain[:-1]):
        monkeypatch.setenv(name, "1")
    with child("import json, os; print(json.dumps(dict(os.environ)))", may_ask=may_ask) as process:
        found = set(next(process.messages()))
    assert found >= set(plain)
    assert not found & set(own)
    assert found & set(others) == (set(others) if may_ask else set())


def test_what_it_complains_of_without_end_neither_holds_it_up_nor_is_kept(monkeypatch):
    monkeypatch.setattr(subprocess_json, "_MOST_ERRORS", 3)
    with child(
        "import sys\nfor i in range(20_000): print(i, file=sys.stderr)\nprint('{\"a\": 1}')",
    ) as process:
        assert list(process.messages()) == [{"a": 1}]
    assert list(process._errors) == ["19997\n", "19998\n", "19999\n"]


def test_one_that_takes_too_long_is_killed():
    with child(STAYS, seconds=0.2) as process:
        list(process.messages())
    assert process.is_late
    assert process.code == -9


@pytest.mark.parametrize(
    ("program", "patience", "code"),
    [
        (STAYS, 600, -15),
        (STUBBORN, 0.1, -9),
        (STAYS, 0, -9),
    ],
)
def test_one_that_is_to_end_ends_by_itself_or_is_killed(program, patience, code):
    with child(program) as process:
        said = process.messages()
        assert next(said) == {"stage": "begun"}
        process.end(patience)
        assert list(said) == []
    assert process.code == code


def test_none_outlives_what_it_was_started_for():
    process = child(STAYS)
    with process:
        assert next(process.messages()) == {"stage": "begun"}
    assert process.code == -9
