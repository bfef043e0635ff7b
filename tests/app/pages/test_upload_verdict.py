"""An uploaded run on the overview: its verdict, every check it rests on, and the commands that supply what is
missing.
"""

from __future__ import annotations

import numpy as np
import pytest

from app.shell.widgets import marked
from app.verdict.panel import _title
from core.judging.ingest import ingest
from core.judging.rejudge import judge_stored
from core.judging.uploaded_controls import measure_controls
from core.runs.file.evidence import Check, Evidence, SamplerFigures
from core.runs.reader import RunReader
from core.runs.views.verdicts import Rung
from tests.app.opening import codes
from tests.app.pages.test_verdict import label, opened, said
from tests.core.judging.engine_dumps import ROWS, in_bfloat16, in_float32, saved, states, with_fault

X, HEAD = states()
PLAIN, OTHER = in_bfloat16(X, HEAD, 1), in_bfloat16(X, HEAD, 2)

pytestmark = pytest.mark.usefixtures("own_store")


def test_an_undecided_dump_names_the_commands_with_its_id(own_store, tmp_path):
    run_id = ingest(own_store, [saved(tmp_path / "d.npz", reference=PLAIN, variant=OTHER, token_ids=np.arange(ROWS))])
    app = opened(run=run_id)
    assert "likely rounding" in label(app)
    commands = codes(app)
    pair = "--float32 PAIR_IN_FLOAT32.npz"
    for option in (pair, f"{pair} --floor WAYS_IN_FLOAT32.npz", f"{pair} --model MODEL", "--rerun AGAIN.npz"):
        assert f"ulpscope verdict {run_id} {option}" in commands
    assert "two rows agrees better" in said(app)
    assert f"`ulpscope verdict {run_id} --float32 PAIR_IN_FLOAT32.npz`" in said(app)


def test_without_token_ids_no_model_is_asked_for_and_float32_needs_a_floor(own_store, tmp_path):
    wide = [in_float32(X, HEAD, order) for order in (1, 2)]
    run_id = ingest(own_store, [saved(tmp_path / "d.npz", reference=wide[0], variant=wide[1])])
    commands = " ".join(codes(opened(run=run_id)))
    assert "--floor" in commands
    assert "--model" not in commands
    assert "--float32" not in commands


def test_no_control_that_was_just_given_is_asked_for_again(own_store, tmp_path):
    """A floor of the fault's own kind decides nothing; what is left is another control."""
    wide = [in_float32(x, HEAD, order) for x, order in ((X, 1), (with_fault(X), 2))]
    dump = saved(tmp_path / "d.npz", reference=wide[0], variant=wide[1], token_ids=np.arange(ROWS))
    ways = saved(
        tmp_path / "w.npz", a=wide[0], b=in_float32(with_fault(X), HEAD, 3), c=in_float32(with_fault(X), HEAD, 4)
    )
    with RunReader(own_store.path_of(ingest(own_store, [dump]))) as run:
        judged = judge_stored(own_store, run, measure_controls(run, floor=[ways]))
    app = opened(run=judged)
    assert "are of two kinds" in said(app)
    assert "--floor" not in said(app) + " ".join(codes(app))
    assert f"ulpscope verdict {judged} --model MODEL" in codes(app)


def test_an_invalid_dump_says_why_and_asks_for_no_control(own_store, tmp_path):
    run_id = ingest(own_store, [saved(tmp_path / "d.npz", reference=PLAIN, variant=np.roll(OTHER, 1, axis=0))])
    app = opened(run=run_id)
    assert "invalid dump" in label(app)
    assert "1 row later" in said(app)
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
    assert marked(text, bold=True).replace(" ", "").replace("\N{WORD JOINER}", "") == shown.replace(" ", "")


def test_every_check_of_a_dump_is_named_by_what_it_checked(own_store, tmp_path):
    run_id = ingest(own_store, [saved(tmp_path / "d.npz", reference=PLAIN, variant=OTHER, token_ids=np.arange(ROWS))])
    titles = [fold.label.split("**")[1] for fold in opened(run=run_id).expander if "Dump validity" in fold.label]
    checks = ("shapes and tokens", "shift", "logits or probabilities", "truncation", "NaN and infinity")
    assert titles == [f"Dump validity: {check}" for check in checks]


def test_rows_of_one_rung_that_are_of_one_side_each_are_named_by_the_side_and_inert():
    figures = SamplerFigures(tokens=1, not_the_argmax=0, first=None)
    rows = tuple(Evidence(Check.EMITTED, "a control", figures, "passed", "x", side) for side in ("a", "<b>*b*"))
    assert [_title(Rung("sampler", rows, ""), row) for row in rows] == ["Sampler: a", "Sampler: \\<b\\>\\*b\\*"]
    assert _title(Rung("sampler", rows[:1], ""), rows[0]) == "Sampler"
