"""Runs with a stored verdict of every name, their evidence in the words of
core.inference.controls.judge_model, floors and faults planted.
"""

import numpy as np

from core.capture_request import CaptureRequest
from core.checks.arrays_alone import ARRAYS_ALONE, ScreeningFigures
from core.checks.lower_precision import PRECISIONS, PrecisionsFigures
from core.checks.outliers import OUTLIERS, StructureFigures
from core.checks.pair import OWN_PAIR, WIDE_PAIR, PairFigures
from core.checks.rerun import AGAIN, RerunFigures
from core.checks.truncation import TRUNCATION, TruncationFigures
from core.evidence import MISSING, NOTED, Evidence, Unmeasured
from core.runs.file.records import Prompt, Provenance, RunHeader, SideHeader
from core.verdict import FloorRows, Verdict
from tests.core.runs.made_runs import writing

POSITIONS, VOCAB = 96, 64
REQUEST = CaptureRequest(model="sample_runs/model", prompts=("a b",), variants=("decode",))

RERUN_PASSED = Evidence(
    AGAIN,
    "'prefill' and 'decode', each called twice",
    RerunFigures(not_repeatable=()),
    "passed",
    "Each side gives the same bits when it is called again.",
)
RERUN_FAILED = Evidence(
    AGAIN,
    "'prefill' and 'decode', each called twice",
    RerunFigures(not_repeatable=("decode",)),
    "failed",
    "'decode' does not give the same bits twice: something in it is nondeterministic.",
)


def ratio_row(
    check,
    dtype,
    ratio,
    outcome,
    says,
    **figures,
):
    """A row of the pair with its floor. figures: those that matter to a test."""
    control = f"'decode' against 'prefill' in {dtype}, beside 4 reorderings of every linear map"
    whole = {
        "compute_dtype": dtype,
        "noise_ratio": ratio,
        "largest_ratio_allowed": 10.0 if dtype == "bfloat16" else 4.0,
        "pair_rms_logits": 1.25e-5,
        "floor_rms_logits": 1e-5,
        "seed_ratios": (0.98, 1.02, 1.01, 0.99),
        "worst_position_ratio": 3.5,
        "position_ratio_allowed": None if dtype == "bfloat16" else 4.38,
        "positions": POSITIONS,
        "positions_beyond": 0,
        "log_spread": 0.4,
        "nonfinite_mismatch": 0,
        "linear_maps": 22,
    }
    return Evidence(check, control, PairFigures(**(whole | figures)), outcome, says)


OWN = ratio_row(
    OWN_PAIR,
    "bfloat16",
    1.2504,
    "passed",
    "In bfloat16 the pair is 1.25 times this model's own rounding floor.",
)
EXACT_PASSED = ratio_row(
    WIDE_PAIR,
    "float32",
    0.9557,
    "passed",
    "In float32 the pair is 0.96 times this model's own rounding floor, and no position stands"
    " out.",
)
EXACT_FAILED = ratio_row(
    WIDE_PAIR,
    "float32",
    24.3,
    "failed",
    "In float32 the pair is 24.3 times this model's own rounding floor; rounding stays below 4.",
)
EXACT_MISSING = Evidence(
    WIDE_PAIR,
    "'decode' against 'prefill' in float32",
    Unmeasured(),
    MISSING,
    "The pair cannot be run in float32: the weights take 64 GB, cpu has 8 GB free.",
)
BLOCKS = Evidence(
    OUTLIERS,
    "positions of the float32 pair that stand out from the floor",
    StructureFigures(
        positions=9,
        first=(0, 32),
        starts=(32, 64, 80),
        block=16,
        is_tail=False,
    ),
    NOTED,
    "It begins at position 32; every place where it begins is a multiple of 16, a block's"
    " boundary.",
)
INVALID = Evidence(
    TRUNCATION,
    "the dump's logits",
    TruncationFigures(reference_filled_rows=0, variant_filled_rows=96, least_other_logits=20),
    "failed",
    "Every row of 'decode' holds 20 finite values: the dump keeps the best 20 logits only.",
)

LOWERED = Evidence(
    PRECISIONS,
    "'decode' against the model's own forward in precisions that engines offer",
    PrecisionsFigures(noise_ratio=24.3, precision="KV cache in float8_e4m3fn", share_left=3e-5),
    "passed",
    "'decode' is the model's own function with its KV cache in float8_e4m3fn, 24.3 rounding floors"
    " from float32, and nothing else.",
    "decode",
)

SCREENED = Evidence(
    ARRAYS_ALONE,
    "the two arrays, without controls",
    ScreeningFigures(
        compute_dtype="bfloat16",
        rms_row_ulps=0.4,
        rounding_row_ulps=2.0,
        bug_row_ulps=24.0,
        worst_position_ratio=3.0,
        position_ratio_allowed=20.0,
        positions_beyond=0,
        flips_beyond_noise=0,
        first=None,
        causes=(),
    ),
    "passed",
    "Consistent with rounding in bfloat16: 0.4 row ULPs (rms), and no position stands out.",
)

# name -> (sentence, noise ratio, rows)
CASES = {
    "identical": ("Both sides are equal bit for bit.", None, [RERUN_PASSED]),
    "rounding": (EXACT_PASSED.says, 0.9557, [RERUN_PASSED, OWN, EXACT_PASSED]),
    "nondeterministic": (
        f"{RERUN_FAILED.says} Beyond that it is rounding: {EXACT_PASSED.says}",
        0.9557,
        [RERUN_FAILED, OWN, EXACT_PASSED],
    ),
    "lower precision": (LOWERED.says, 24.3, [RERUN_PASSED, EXACT_FAILED, LOWERED]),
    "bug suspected": (EXACT_FAILED.says, 24.3, [RERUN_PASSED, OWN, EXACT_FAILED, BLOCKS]),
    "invalid dump": (INVALID.says, None, [INVALID]),
    "likely rounding": (f"{SCREENED.says} {EXACT_MISSING.says}", None, [SCREENED, EXACT_MISSING]),
    "undecided": (EXACT_MISSING.says, 1.2504, [RERUN_PASSED, OWN, EXACT_MISSING]),
}


def planted_sides():
    """bfloat16 bits, [positions, vocab] each: some differ by one ULP, two flips at near ties
    (positions 10 and 70, both a ULP).
    """
    random = np.random.default_rng(0)
    values = (random.standard_normal((POSITIONS, VOCAB)) * 3).astype(np.float32)
    values[:, 0] = 16.0  # one clear winner; bfloat16 steps there are an eighth
    values[[10, 70], 1] = 15.9375
    reference = (values.view(np.uint32) >> 16).astype(np.uint16)
    variant = reference ^ (random.random(reference.shape) < 0.3).astype(np.uint16)
    variant[:, 0] = reference[:, 0]
    variant[[10, 70], 1] = reference[[10, 70], 0] + 1
    return [reference, variant]


def floors(outliers=()):
    """Of both dtypes: the pair a little above the floor, in float32 a thousand times so at
    `outliers`.
    """
    random = np.random.default_rng(1)
    shape = np.exp(random.normal(0, 0.4, POSITIONS))
    rows = []
    for dtype, scale in (("bfloat16", 1e-2), ("float32", 3e-6)):
        floor = shape * scale
        pair = floor * np.exp(random.normal(0.1, 0.25, POSITIONS))
        if dtype == "float32":
            pair[list(outliers)] = floor[list(outliers)] * 1000
        rows.append(FloorRows(dtype, pair, floor))
    return rows


def judged_run(
    store,
    verdict,
    *,
    evidence=None,
    kind="capture",
    request=REQUEST,
    model="sample_runs/model",
    revision="sha256:c146",
    run_id=None,
    with_token_ids=True,
):
    """Writes a run whose one pair has this verdict; None: not judged."""
    ids, texts = tuple(range(2, POSITIONS + 2)), tuple(f" w{i}" for i in range(POSITIONS))
    sides = planted_sides()
    if verdict == "identical":
        sides[1] = sides[0].copy()
    header = RunHeader(
        f"Judged: {verdict}",
        "bfloat16",
        VOCAB,
        (Prompt(POSITIONS, ids, texts) if with_token_ids else Prompt(POSITIONS),),
        (SideHeader("prefill", "prefill", "bfloat16"), SideHeader("decode", "decode", "bfloat16")),
        Provenance(
            kind,
            model,
            revision,
            "cpu" if kind == "capture" else "",
            "a chip" if kind == "capture" else "",
            0,
            request.typed() if request else "",
            versions={"torch": "2.13.0+cpu"} if kind == "capture" else {},
            request=request.to_json() if request else None,
        ),
        {i: f" w{i}" for i in range(VOCAB)},
    )
    with writing(store, header, sides, run_id) as writer:
        if verdict is not None:
            because, noise_ratio, rows = CASES[verdict]
            outliers = (32, 33, 34, 64, 65, 66, 80, 81, 82) if verdict == "bug suspected" else ()
            has_floor = any(
                row.check is WIDE_PAIR and isinstance(row.figures, PairFigures) for row in rows
            )
            evidence_rows = tuple(rows if evidence is None else evidence)
            by_position = floors(outliers) if has_floor else ()
            place = (0, outliers[0]) if outliers else None
            writer.write_verdict(
                Verdict(verdict, because, evidence_rows, noise_ratio, place, tuple(by_position)),
            )
        return writer.finish()
