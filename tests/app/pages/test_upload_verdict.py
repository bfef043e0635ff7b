"""An uploaded run on the overview: its verdict and the commands that supply what is missing."""

import numpy as np
import pytest

from app.shell.widgets import to_markdown
from core.judging.ingest import ingest
from tests.app.opening import codes, page_text
from tests.app.pages.test_verdict import label, opened
from tests.core.judging.engine_dumps import ROWS, in_bfloat16, saved, states

X, HEAD = states()
PLAIN, OTHER = in_bfloat16(X, HEAD, 1), in_bfloat16(X, HEAD, 2)

pytestmark = pytest.mark.usefixtures("own_store")


def test_an_undecided_dump_names_the_commands_with_its_id(own_store, tmp_path):
    run_id = ingest(
        own_store,
        [saved(tmp_path / "d.npz", reference=PLAIN, variant=OTHER, token_ids=np.arange(ROWS))],
    )
    app = opened(run=run_id)
    assert "Likely rounding" in label(app)
    commands = codes(app)
    pair = "--float32 PAIR_IN_FLOAT32.npz"
    for option in (
        pair,
        f"{pair} --floor WAYS_IN_FLOAT32.npz",
        f"{pair} --model MODEL",
        "--rerun AGAIN.npz",
    ):
        assert f"\nulpscope verdict {run_id} {option}" in "".join(commands)
    assert "argmax" in page_text(app)


def test_an_invalid_dump_says_why_and_asks_for_no_control(own_store, tmp_path):
    run_id = ingest(
        own_store,
        [saved(tmp_path / "d.npz", reference=PLAIN, variant=np.roll(OTHER, 1, axis=0))],
    )
    app = opened(run=run_id)
    assert "Invalid dump" in label(app)
    assert "row t - 1 of" in page_text(app)
    assert not [text for text in codes(app) if "verdict" in text]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("run `a b` now.", "**run** `a b`**now\\.**"),
        ("one ` alone *x*", "**one ' alone \\*x\\***"),
        ("`<b>x</b>` [l](http://e)", "`<b>x</b>` **\\[l\\]\\(http\\://e\\)**"),
        ("``", ""),
    ],
)
def test_only_what_stands_between_backticks_is_code(text, shown):
    assert to_markdown(text, bold=True).replace(" ", "").replace(
        "\N{WORD JOINER}",
        "",
    ) == shown.replace(" ", "")
