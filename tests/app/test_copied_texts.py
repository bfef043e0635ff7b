"""What a page offers to be copied: nothing in it is invisible for any run file, and a command is
one of ours.
"""

from dataclasses import fields, replace

import pytest

from core.capture_request import CaptureRequest
from core.runs.reports.issue_markdown import issue_text
from core.runs.reports.run_json import run_json
from core.text import is_seen
from tests.app.opening import codes, open_page, page_text
from tests.core.runs.damaging import damaged, with_texts
from tests.core.runs.judged_runs import judged_run
from tests.core.runs.made_runs import opened
from tests.shell import words_of

# Line ends, ^C and ^Z, a colour, a backspace, right to left, an isolate, nothing of no width, a
# letter that is drawn as nothing, and the eight-bit form of ESC [.
PLANTED = "'; : pwned #\n\r\x03\x1a\x1b[2K\x08\u202e\u2066\u200b\u3164\x9b31m\u2028\n: pwned\n"
STATED = "ulpscope judge --model stated-by-its-author"


def request_of_a_stranger():
    """A request every text of which ends in PLANTED, and that asks for all that it may."""
    texts = {
        each.name: (f"x{PLANTED}",) if str(each.type) == "tuple[str, ...]" else f"x{PLANTED}"
        for each in fields(CaptureRequest)
        if "str" in str(each.type) and each.name != "declares"
    }
    return replace(CaptureRequest(model="m"), **texts, trust_remote_code=True)


def of_a_stranger(path):
    """The run file with PLANTED behind each of its texts, those of its request among them."""
    with_texts(path, PLANTED)
    asked = request_of_a_stranger().to_json().replace("'", "''")
    damaged(path, f"UPDATE run SET request = '{asked}' WHERE kind = 'capture'")


def harmful(text):
    """What is wrong with a text to be copied."""
    # so that a report mentions and links nothing
    ours = text.replace("@\u200b", "@").replace(":\u200b//", "://")
    found = [] if all(c in "\n\t" or is_seen(c) for c in ours) else ["unseen"]
    if text.startswith("ulpscope "):
        if "\n" in text:
            return [*found, "lines"]
        words = words_of(text)
        found += ["code of a model"] if "--trust-remote-code" in words else []
        found += ["more than values"] if {":", "pwned"} & set(words) else []
    return found


@pytest.mark.parametrize(
    "page",
    ["layers", "overview", pytest.param("kernels", marks=pytest.mark.thorough)],
)
def test_nothing_unseen_is_copied_and_no_command_but_ours(page, bare_store):
    of_a_stranger(bare_store.path_of(judged_run(bare_store, None, run_id="unjudged")))
    app = open_page(page, ("copy_report",), run="unjudged")
    found = codes(app)
    assert found[0].startswith("ulpscope ")
    # U+202E in the octal escapes of bash, which a reader sees and a shell undoes
    assert "\\342\\200\\256" in found[0]
    assert [(harmful(text), text) for text in found if harmful(text)] == []
    assert len(found) == (2 if page == "overview" else 1)
    assert "which runs code" in page_text(app)


def test_a_command_that_a_file_states_is_shown_as_its_own_and_never_offered(bare_store):
    run_id = judged_run(bare_store, None, run_id="stated", request=None)
    damaged(bare_store.path_of(run_id), f"UPDATE run SET command = '{STATED}\x1b'")
    app = open_page("overview", ("copy_report", "provenance"), run=run_id)
    assert "did not record its options" in page_text(app)
    assert not [text for text in codes(app) if STATED in text or text.startswith("python")]
    table = next(
        table.value for table in app.table if "recorded command (unverified)" in table.value.index
    )
    assert f"{STATED}\\x1b" in table.to_string().replace("\\-", "-").replace("\\\\", "\\")
    with opened(bare_store, run_id) as run:
        told = run_json(run)
        assert told["command"] == ""
        assert told["stated_command"] == f"{STATED}\\x1b"
        assert STATED not in issue_text(run, run.pairs, "")
