"""What a gate lets pass and what it fails, against figures of the independent oracle, numpy and
hand-made rows.
"""

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import rel_entr, softmax

from core.errors import UsageError
from core.evidence import FAILED, PASSED
from core.judging.ingest import temporary_run
from core.numerics.formats import FLOAT16
from core.runs.queries.verdicts import Answer
from core.runs.reports.conditions import Condition, parse_conditions
from core.runs.reports.gate import GateReport, gate_of
from core.runs.reports.report_json import report_of_run
from tests.core.numerics.oracle import ordinal
from tests.places import CASES

SAME = "bits flips verdict ulps:4 share>0 same-top1<1 ess<0.3 p99.9>0.5 flips:margin>0.25"
MEANT = [  # what is written, and what it is shown as
    *zip(SAME.split(), SAME.split(), strict=True),
    ("mismatch_kl/all/mean>0.01", "mismatch_kl/all/mean>0.01"),
    ("flips:margin > 5 ulps", "flips:margin>5ulps"),
    (" kl > 0.01 ", "kl>0.01"),
    ("rms>1E-3", "rms>0.001"),
    ("max-abs>.5", "max-abs>0.5"),
]
REFUSED = (
    "ulp flips:sure>1 bits>1 kl flips:margin ulps ulps>3 ulps:-1 ulps:1.5 kl:0.1 kl> kl>nan kl>inf"
    " kl>-1 kl>=1 kl>1_0 kl>\u0663 rms>0.1logits kl>1e999 share>1.5 same-top1<90 same-top1>0.9"
    " flips:margin>5ulp kl>1\x1b[31m rms>5ulps k3 k3:1 k4>1 ess<0.3ulps"
)


def read(*paths):
    with temporary_run(paths) as run:
        return report_of_run(run)[0], replace(run.header, vocabulary=run.vocabulary)


def made(folder, **arrays):
    np.savez(
        folder / "dump.npz",
        **{name: np.asarray(array) for name, array in arrays.items()},
    )
    return read(folder / "dump.npz")


def judged(text, pair):
    return Condition.parse(text).judge(pair)


@pytest.mark.parametrize(("text", "shown"), MEANT)
def test_a_condition_is_read_and_shown_in_one_way(text, shown):
    assert str(Condition.parse(text)) == shown
    assert Condition.parse(shown) == Condition.parse(text)


@pytest.mark.parametrize(
    "text",
    [*REFUSED.split(), "", "ulps:" + "9" * 5000],
)
def test_a_malformed_condition_is_named_and_told_what_is_allowed(text):
    allowed = r"condition '.*' is not known; expected bits, flips,"
    with pytest.raises(UsageError, match=allowed) as refused:
        Condition.parse(text)
    assert "\x1b" not in str(refused.value)


def test_conditions_come_repeated_or_with_commas_and_each_counts_once():
    conditions = parse_conditions(["bits,kl>0.1", "kl > 0.1, ulps:3"])
    assert list(map(str, conditions)) == ["bits", "kl>0.1", "ulps:3"]
    assert parse_conditions("bits,ulps:3") == parse_conditions(["bits", "ulps:3"])
    with pytest.raises(UsageError, match="'' is not known"):
        parse_conditions(["bits,"])


@pytest.mark.parametrize(
    "case",
    ["flips_fp16", "one_ulp_bf16_void", "six_repeats_bf16", "identical_bf16_bits"],
)
@pytest.mark.parametrize(
    ("condition", "name"),
    [
        ("kl>", "max_kl"),
        ("max-abs>", "max_abs"),
        ("share>", "neq_share"),
        ("same-top1<", "same_top1"),
    ],
)
def test_a_figure_passes_up_to_its_limit_and_fails_beyond(case, condition, name):
    (pair, *_), _ = read(CASES / f"{case}.npz")
    about = json.loads((CASES / f"{case}.json").read_text())
    oracle = about["summary"]
    oracle["neq_share"] = oracle["neq"] / (about["positions"] * about["vocab"])
    figure = oracle[name]
    # the oracle sums in another order, and KL agrees to 1e-6
    beyond = figure * (1 - 1e-6)
    within = figure * (1 + 1e-6)
    if condition == "same-top1<":
        beyond, within = within, beyond
    assert judged(f"{condition}{within:.15f}", pair).outcome == PASSED
    # a limit of a share is at most 1
    if figure and beyond <= 1:
        assert judged(f"{condition}{beyond:.15f}", pair).outcome == FAILED


@pytest.mark.parametrize("unit", ["", "ulps"])
def test_a_flip_counts_where_the_smaller_margin_is_over_the_limit(unit):
    """Margins by numpy's sort; at every limit between two of them."""
    with np.load(CASES / "flips_fp16.npz") as case:
        sides = case["reference"], case["variant"]
    margins = []
    for side in sides:
        ordered = np.sort(ordinal(side, FLOAT16) if unit else side.astype(float), axis=1)
        margins.append(ordered[:, -1] - ordered[:, -2])
    is_flip = sides[0].argmax(1) != sides[1].argmax(1)
    smaller = np.minimum(*margins)[is_flip]
    (pair,), _ = read(CASES / "flips_fp16.npz")
    assert len(smaller) == 7
    assert 0 < (smaller > 0).sum() < 7  # ties among them, and flips that are none
    for limit in np.unique(smaller):
        outcome = judged(f"flips:margin>{limit:.10g}{unit}", pair)
        counted = int((smaller > limit).sum())
        assert outcome.figure == counted
        assert outcome.outcome == (FAILED if counted else PASSED)


def test_a_flip_with_an_undefined_margin_counts(tmp_path):
    nan = np.nan
    inf = np.inf
    reference = [[0, 3.0, 1], [0, 1, 2.0]]
    (pair,), _ = made(
        tmp_path,
        reference=reference,
        variant=[[nan, nan, nan], [inf, 1, 2.0]],
    )
    outcome = judged("flips:margin>100", pair)
    assert outcome.outcome == FAILED
    assert outcome.figure == 2


def test_undefined_kl_fails_where_the_sides_differ_and_is_left_out_where_they_are_equal(tmp_path):
    calm = [[0.0, 1, 2]] * 3
    endless = [[0.0, 1, 2], [np.inf, 1, 2], [0.0, 1, 2]]
    (differing, equal), _ = made(tmp_path, reference=endless, variant=calm, same=endless)
    failed = judged("kl>1000", differing)
    passed = judged("kl>0", equal)
    assert failed.outcome == FAILED
    assert passed.outcome == PASSED
    assert "1 of 3 positions" in failed.says
    assert failed.worst["position"] == 1
    assert "1 of 3 positions with" in passed.says


@pytest.mark.parametrize(
    "text",
    ["rms>1000", "max-abs>1000", "ulps:99999999", "bits", "kl>1000"],
)
def test_a_nan_on_one_side_passes_no_condition_of_size_and_is_where_it_is_worst(tmp_path, text):
    (pair,), _ = made(
        tmp_path,
        reference=[[0.0, 1, 2], [3, 1, 2], [3, 4, 5]],
        variant=[[0.5, 1, 2], [3, np.nan, 2], [3, 4, 5]],
    )
    outcome = judged(text, pair)
    assert outcome.outcome == FAILED
    assert outcome.worst["position"] == 1


def test_positions_without_any_number_are_noted(tmp_path):
    rows = np.array([[0.0, 1, 2], [np.nan] * 3])
    notes = []
    for number, part in enumerate((rows, rows[:1])):
        dump = tmp_path / f"{number}.npz"
        np.savez(dump, reference=part, variant=part)
        with temporary_run([dump]) as run:
            gate = gate_of(run, report_of_run(run)[0], parse_conditions("flips,same-top1<1"))
        assert gate.outcome == PASSED
        notes += gate.notes
    (note,) = notes
    assert "holds no number, position 1 of prompt 0" in note


@pytest.mark.parametrize(
    "text",
    ["bits", "flips", "ulps:0", "kl>0", "rms>0", "max-abs>0", "share>0", "same-top1<1"],
)
def test_equal_sides_pass_everything_and_nowhere_is_worst(text):
    (pair,), _ = read(CASES / "identical_bf16_bits.npz")
    outcome = judged(text, pair)
    assert outcome.outcome == PASSED
    assert outcome.worst is None


def test_zeros_of_another_sign_fail_bits_alone(tmp_path):
    (pair,), _ = made(
        tmp_path,
        reference=[[1.0, 2], [0.0, 1]],
        variant=[[1.0, 2], [-0.0, 1]],
    )
    outcome = judged("bits", pair)
    assert outcome.outcome == FAILED
    assert "zeros differ in sign" in outcome.says
    assert outcome.worst["position"] == 1
    assert judged("share>0", pair).outcome == judged("ulps:0", pair).outcome == PASSED


PLANTED = {  # condition: the position that is worst under it, of the rows below
    "bits": 4,
    "max-abs>0": 4,
    "rms>0": 3,
    "share>0": 3,
    "kl>0": 4,
    "flips": 2,
    "flips:margin>0.1": 2,
    "same-top1<1": 2,
    "ulps:0": 1,
}


@pytest.mark.parametrize(("text", "position"), PLANTED.items())
def test_the_worst_position_is_that_of_the_condition(tmp_path, text, position):
    reference = np.tile(np.float32([0, 8, 7, 1, 2, 3]), (6, 1))
    variant = reference.copy()
    variant[1, 3] = -2.5  # two billion ULPs from 1, at an unlikely token
    variant[0, 1:3] = 7.2, 7.3  # a flip of a margin of 0.1
    variant[2, 1:3] = 7, 8  # a flip by a logit on both sides
    # all of them, though no probability changes
    variant[3] += np.float32([-1.9, -1.9, -1.9, -1.9, -1.9, -1.9])
    variant[4, 1] = 12  # the largest difference
    (pair,), _ = made(tmp_path, reference=reference, variant=variant)
    outcome = judged(text, pair)
    assert outcome.outcome == FAILED
    assert outcome.worst["position"] == position


def test_a_gate_that_passes_speaks_row_ulps(tmp_path):
    """bfloat16 has 128 values in each of the 9 binades from 2^-10 to 0.5, and a spacing of 1/16 at
    8.
    """
    reference = np.float32([[0, 8, 7], [2**-10, 8, 7]])
    variant = reference.copy()
    variant[1, 0] = 0.5
    (pair,), header = made(tmp_path, reference=reference, variant=variant)
    passed, failed = (judged(text, pair) for text in ("kl>1", "ulps:0"))
    report = GateReport((passed,), header.prompts)
    # (0.5 - 2^-10) * 16
    assert "and 7.98 row ULPs" in report.in_words(passed.worst)
    assert "and 1,152 ULPs" in GateReport((failed,), header.prompts).sentence(failed)


def test_a_failure_names_prompt_position_tokens_and_margins(tmp_path):
    reference = np.float32([[[0, 3, 1], [0, 1, 2]], [[2, 1, 0], [0, 1, 2.5]]])
    variant = reference.copy()
    variant[1, 1] = [0, 3, 2]
    texts = [[" the", " cat"], [" dog", " cat"]]
    about = {"token_ids": [[0, 1], [2, 1]], "tokens": texts}
    (pair,), header = made(tmp_path, reference=reference, variant=variant, **about)
    outcome = judged("flips", pair)
    report = GateReport((outcome,), header.prompts, header.vocabulary)
    assert "margins 1.5 and 1 logits" in report.sentence(outcome)
    # Every value is a bfloat16, of which there are 128 from 1 to 2 and from 2 to 4.
    assert "64 ULPs), KL 0.624 nats" in report.sentence(outcome)
    worst = report.as_json()["worst"]
    expected = {
        "variant": "variant",
        "prompt": 1,
        "position": 1,
        "token": 1,
        "text": " cat",
        "reference_text": " dog",
        "variant_text": " cat",
    }
    assert worst.items() >= expected.items()
    p, q = softmax([[0, 1, 2.5], [0, 3, 2]], axis=1)
    assert worst["kl"] == pytest.approx(rel_entr(p, q).sum(), abs=1e-4)
    json.dumps(report.as_json(), allow_nan=False)


@pytest.mark.parametrize(
    ("value", "text", "outcome"),
    [
        (0.5, "ess<0.5", "passed"),
        (0.5, "ess<0.6", "failed"),
        (0.5, "ess>0.4", "failed"),
        (None, "ess<0.5", "undecided"),
    ],
)
def test_the_value_of_a_figure_decides_whatever_its_interval(value, text, outcome):
    (pair,), header = read(CASES / "flips_fp16.npz")
    figure = {"name": "ess", "value": value, "low": 0.3, "high": 0.7, "unit": ""}
    found = Condition.parse(text).judge(
        replace(
            pair,
            mismatch={"figures": [figure]},
        )
    )
    assert found.outcome == outcome
    assert ("95% interval 0.3 to 0.7" in found.says) == (value is not None)
    json.dumps(GateReport((found,), header.prompts, {}).as_json(), allow_nan=False)


@pytest.mark.parametrize(
    ("verdict", "outcome"),
    [
        ("bug suspected", "failed"),
        ("nondeterministic", "failed"),
        ("invalid dump", "failed"),
        ("rounding", "passed"),
        ("identical", "passed"),
        ("lower precision", "passed"),
        ("undecided", "undecided"),
        ("not judged", "undecided"),
    ],
)
def test_a_verdict_fails_on_faults_and_what_nothing_decides_is_undecided(verdict, outcome):
    (pair,), header = read(CASES / "flips_fp16.npz")
    found = Condition.parse("verdict").judge(replace(pair, answer=Answer(verdict, "A sentence.")))
    assert found.outcome == outcome
    assert found.figure == verdict
    assert f"is {verdict}: " in found.says
    assert GateReport((found,), header.prompts, {}).outcome == outcome


def test_a_gate_of_no_condition_is_refused():
    with pytest.raises(UsageError, match="no condition"):
        parse_conditions([])
