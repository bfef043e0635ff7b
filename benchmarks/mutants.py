"""Mutants: faults planted in the code one at a time, each of which a test has to notice, or of the
judge the table of `benchmarks.power`.

python -m benchmarks.mutants              # all of them, as a table; exit code 1 if one lived
python -m benchmarks.mutants leak title   # those whose names contain one of the words
python -m benchmarks.mutants judge        # those that have to move the table
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# What tests read. Sample runs are large and read only, so the copy links to them.
COPIED = (".streamlit", "app", "benchmarks", "core", "docs", "pages", "tests", "pyproject.toml")


@dataclass(frozen=True)
class Mutant:
    """A fault: `old`, which its file has once, becomes `new`. tests: those that have to notice;
    pairs: of PAIRS instead, whose table has to move.
    """

    name: str
    file: str
    old: str
    new: str
    tests: str = ""
    pairs: str = ""


# Options of `benchmarks.power` by name. The sound pairs of the family count as well.
PAIRS = {
    "llama": (
        "--quick",
        "--family=llama",
        "--fault=v_scale of a head",
        "--fault=epsilon",
        "--fault=mean square of norms in bfloat16",
        "--fault=stale slot of an earlier request",
        "--fault=logit bias",
    ),
    # with faults of 16 bits alone
    "alone": ("--family=llama", "--fault=v_scale of a head"),
    "mixtral": (
        "--quick",
        "--family=mixtral",
        "--fault=router not renormalized",
        "--fault=one token dropped by its experts",
    ),
}


def _of_judge(name: str, file: str, old: str, new: str, pairs: str = "llama") -> Mutant:
    return Mutant(f"judge: {name}", f"core/{file}.py", old, new, pairs=pairs)


MUTANTS = (
    Mutant(
        "title of the picture with its sides swapped",
        "core/document/drawing.py",
        "{pair.variant} vs {pair.reference}",
        "{pair.reference} vs {pair.variant}",
        "tests/core/document/test_drawing.py",
    ),
    Mutant(
        "smallest detectable fault without the minus one",
        "core/numerics/statistic.py",
        "math.sqrt(max(ratio, 1.0) ** 2 - 1)",
        "math.sqrt(max(ratio, 1.0) ** 2)",
        "tests/core/numerics/test_statistic.py",
    ),
    Mutant(
        "tolerance of leaks at 40",
        "core/checks/other_rows.py",
        "_MORE_THAN_A_RERUN = 4.0",
        "_MORE_THAN_A_RERUN = 40.0",
        "tests/core/judging/test_judge.py",
    ),
    Mutant(
        "rerun without a limit at one position",
        "core/checks/rerun.py",
        "test.ratio > limits.over_all or worst > at_one",
        "test.ratio > limits.over_all",
        "tests/core/judging/test_judge.py",
    ),
    Mutant(
        "one side in a lower precision excuses both",
        "core/judging/conclude.py",
        "{row.outcome for row in precisions} == {PASSED}",
        "PASSED in {row.outcome for row in precisions}",
        "tests/core/judging/test_judge.py tests/core/inference/controls/precisions",
    ),
    Mutant(
        "errors that 16 bits leave open decide",
        "core/judging/conclude.py",
        "row.outcome == MISSING and row.figures.leaves_16_bits_open",
        "row.outcome != MISSING and row.figures.leaves_16_bits_open",
        "tests/core/judging tests/core/inference/controls/test_dump_of_model.py",
    ),
    Mutant(
        "a rerun beyond rounding is only nondeterministic",
        "core/judging/conclude.py",
        'getattr(rerun.figures, "beyond_noise_floor", False)',
        "False",
        "tests/core/judging/test_judge.py",
    ),
    Mutant(
        "limit of the noise ratio in float32 at 40",
        "core/checks/pair.py",
        "WIDE = Limits(over_all=4.0",
        "WIDE = Limits(over_all=40.0",
        "tests/core/numerics/test_statistic.py",
    ),
    Mutant(
        "limit of errors in 16 bits at 4",
        "core/checks/drawn.py",
        "DRAWN_LIMITS = Limits(over_all=2.0",
        "DRAWN_LIMITS = Limits(over_all=4.0",
        "tests/core/numerics/test_statistic.py",
    ),
    Mutant(
        "a token alone up to 40 times chance",
        "core/checks/single_token.py",
        "LARGEST_SHIFT = 12.0",
        "LARGEST_SHIFT = 40.0",
        "tests/core/checks/test_single_token.py",
    ),
    Mutant(
        "KL with the sides exchanged",
        "core/numerics/kernel.py",
        "kl = weighted / a_sum + math.log(b_sum / a_sum)",
        "kl = weighted / a_sum - math.log(b_sum / a_sum)",
        "tests/core/numerics/test_divergence.py",
    ),
    Mutant(
        "largest values in the order of the processor",
        "core/numerics/top_tokens.py",
        'np.argsort(-values[places], kind="stable")',
        "np.argsort(-values[places])[::1]",
        "tests/core/numerics",
    ),
    Mutant(
        "near ties up to 4 row ULPs",
        "core/numerics/divergence.py",
        "NEAR_TIE_ROW_ULPS = 2",
        "NEAR_TIE_ROW_ULPS = 4",
        "tests/core/numerics",
    ),
    Mutant(
        "flips possible at half the difference",
        "core/numerics/divergence.py",
        "return self.smaller_margin <= 2 * self.max_abs",
        "return self.smaller_margin <= self.max_abs",
        "tests/core/numerics/test_divergence.py",
    ),
    Mutant(
        "margins in ULPs with their sign",
        "core/numerics/divergence.py",
        "ordinals(pair[:, 0], fmt) - ordinals(pair[:, 1], fmt)",
        "ordinals(pair[:, 1], fmt) - ordinals(pair[:, 0], fmt)",
        "tests/core/numerics/test_divergence.py",
    ),
    Mutant(
        "far distances a power of two too low",
        "core/numerics/divergence.py",
        "1 << np.arange(16, 32)",
        "1 << np.arange(15, 31)",
        "tests/core/numerics/test_divergence.py",
    ),
    Mutant(
        "rms over all elements, finite or not",
        "core/numerics/divergence.py",
        "np.sqrt(self.sum_squares / np.maximum(self.finite, 1))",
        "np.sqrt(self.sum_squares / self.vocab)",
        "tests/core/numerics/test_divergence.py",
    ),
    Mutant(
        "k3 without minus r",
        "core/rl/figures.py",
        "return np.expm1(r) - r",
        "return np.expm1(r)",
        "tests/core/rl/test_figures.py",
    ),
    Mutant(
        "ratios that no clamp bounds",
        "core/rl/figures.py",
        "CLAMP = 20.0",
        "CLAMP = 700.0",
        "tests/core/rl/test_figures.py tests/core/rl/test_queries.py",
    ),
    Mutant(
        "TRL's cap at 30",
        "core/rl/figures.py",
        "_TRL_CAP = 3.0",
        "_TRL_CAP = 30.0",
        "tests/core/rl/test_figures.py tests/core/rl/test_queries.py",
    ),
    Mutant(
        "effective sample size over sequences",
        "core/rl/figures.py",
        "/ (self.tokens * self.sum",
        "/ (len(self.sequences) * self.sum",
        "tests/core/rl/test_figures.py",
    ),
    Mutant(
        "a gate on least values that looks for largest",
        "core/runs/reports/conditions.py",
        'is_beyond = figure < self.limit if self.sign == "<" else figure > self.limit',
        "is_beyond = figure > self.limit",
        "tests/core/runs/reports/test_gate.py",
    ),
    Mutant(
        "a gate that fails a figure at its limit",
        "core/runs/reports/conditions.py",
        'is_beyond = figure < self.limit if self.sign == "<" else figure > self.limit',
        'is_beyond = figure < self.limit if self.sign == "<" else figure >= self.limit',
        "tests/core/runs/reports/test_gate.py",
    ),
    Mutant(
        "a run file whose bits changed is imported",
        "core/runs/importing.py",
        "!= stored:",
        "== (stored, stored):",
        "tests/core/runs/test_importing.py",
    ),
    Mutant(
        "deleted runs are kept for ever",
        "core/runs/store/store.py",
        "timedelta(seconds=DELETED_SECONDS)",
        "timedelta(days=9999)",
        "tests/core/runs/store/test_labels.py",
    ),
    Mutant(
        "an upload whose bytes changed is stored",
        "app/upload/routes.py",
        'hashlib.file_digest(file, "sha256").digest() != base64.b64decode(match[1])',
        "False",
        "tests/app/upload/test_routes.py",
    ),
    Mutant(
        "an unverified address signs in",
        "app/hosting/sign_in.py",
        'claims.get("email_verified") is True',
        'claims.get("email_verified", True)',
        "tests/app/hosting",
    ),
    Mutant(
        "a session outlives a changed password",
        "app/hosting/members.py",
        'text = f"{way}\\n{member}\\n{basis}"',
        'text = f"{way}\\n{member}"',
        "tests/app/hosting",
    ),
    Mutant(
        "a block that ends with the prompt is reused",
        "core/inference/paths/bases.py",
        "reused = (batch.positions - 1) // size * size",
        "reused = batch.positions // size * size",
        "tests/core/inference/paths",
    ),
    Mutant(
        "reuse computes from its first token on",
        "core/inference/paths/bases.py",
        "batch.forward(prefix, batch.positions, emit, reused)",
        "batch.forward(0, batch.positions, emit, reused)",
        "tests/core/inference/paths",
    ),
    Mutant(
        "an endpoint near its limit comes and goes",
        "core/probing/watch.py",
        "has_moved = nats > (last.limit_nats / FACTOR if since else last.limit_nats)",
        "has_moved = nats > last.limit_nats",
        "tests/core/probing/test_watch.py",
    ),
    Mutant(
        "a failed cell counts as one that is done",
        "core/sweeps/matrix.py",
        "{FAILED: 0, DONE: 1, RUNNING: 2, MISSING: 3}",
        "{FAILED: 1, DONE: 0, RUNNING: 2, MISSING: 3}",
        "tests/core/sweeps/test_history.py",
    ),
    Mutant(
        "continuations that part one token late",
        "core/runs/queries/flips.py",
        "coalesce(parting, compared, 0) AS agreed_tokens",
        "coalesce(parting + 1, compared, 0) AS agreed_tokens",
        "tests/core/runs/queries",
    ),
    Mutant(
        "ranks counted from 0",
        "core/runs/queries/flips.py",
        "{t}_{s}.rank + 1 AS {t}_{s}_rank",
        "{t}_{s}.rank AS {t}_{s}_rank",
        "tests/core/runs/queries",
    ),
    _of_judge(
        "float32 up to 400 floors",
        "checks/pair",
        "WIDE = Limits(over_all=4.0",
        "WIDE = Limits(over_all=400.0",
    ),
    _of_judge(
        "float32 up to 400 floors at a position",
        "checks/pair",
        "over_all=4.0, at_a_place=4.0",
        "over_all=4.0, at_a_place=400.0",
    ),
    _of_judge(
        "float32 up to half a floor",
        "checks/pair",
        "WIDE = Limits(over_all=4.0",
        "WIDE = Limits(over_all=0.5",
    ),
    _of_judge(
        "16 bits up to half a floor",
        "checks/pair",
        "OWN = Limits(over_all=10.0",
        "OWN = Limits(over_all=0.5",
    ),
    _of_judge(
        "errors of 16 bits up to 200 roundings",
        "checks/drawn",
        "Limits(over_all=2.0, at_a_place=2.0)",
        "Limits(over_all=200.0, at_a_place=200.0)",
        "alone",
    ),
    _of_judge(
        "errors of 16 bits up to half a rounding",
        "checks/drawn",
        "Limits(over_all=2.0, at_a_place=2.0)",
        "Limits(over_all=0.5, at_a_place=0.5)",
    ),
    _of_judge(
        "a tenth of the limit of systematic errors",
        "checks/drawn",
        "max(limits.over_all, _SYSTEMATIC_OVER_DRAWS",
        "max(0.0, 0.1 * _SYSTEMATIC_OVER_DRAWS",
    ),
    _of_judge(
        "errors beyond rounding pass",
        "checks/drawn",
        "    outcome, says = FAILED, beyond_in_words",
        "    outcome, says = PASSED, beyond_in_words",
        "alone",
    ),
    _of_judge(
        "modules alone up to 1e9 floors",
        "checks/modules_alone",
        "LARGEST_ALONE = 10.0",
        "LARGEST_ALONE = 1e9",
    ),
    _of_judge(
        "modules alone up to no floor",
        "checks/modules_alone",
        "LARGEST_ALONE = 10.0",
        "LARGEST_ALONE = 0.0",
    ),
    _of_judge(
        "modules in 16 bits up to 2,000 roundings",
        "checks/modules_in_16_bits",
        "LARGEST_IN_16_BITS = 2.0",
        "LARGEST_IN_16_BITS = 2000.0",
        "alone",
    ),
    _of_judge(
        "modules in 16 bits up to a fifth of a rounding",
        "checks/modules_in_16_bits",
        "LARGEST_IN_16_BITS = 2.0",
        "LARGEST_IN_16_BITS = 0.2",
    ),
    _of_judge(
        "directions of modules on no evidence",
        "inference/controls/modules_alone",
        "limits_of(0.1, evidence=4.5, column=0.5)",
        "limits_of(0.0, evidence=0.0, column=0.0)",
    ),
    _of_judge(
        "choices at no gap",
        "checks/choices",
        "LARGEST_GAP = 4.0",
        "LARGEST_GAP = 0.0",
        "mixtral",
    ),
    _of_judge(
        "one draw of the floor",
        "inference/controls/rounding_floor",
        "SEEDS = 4",
        "SEEDS = 1",
    ),
    _of_judge(
        "one logit up to twice the others",
        "checks/single_logit",
        "LARGEST_PEAK = 16.0",
        "LARGEST_PEAK = 2.0",
    ),
    _of_judge(
        "arrays alone up to 1e9 row ULPs",
        "checks/arrays_alone",
        '"float32": (32, 1000, 1)',
        '"float32": (32, 1e9, 1)',
    ),
    _of_judge(
        "arrays alone up to no row ULP",
        "checks/arrays_alone",
        '"float32": (32, 1000, 1)',
        '"float32": (0, 0, 1)',
    ),
    _of_judge(
        "float32 decides nothing",
        "judging/conclude",
        "deciding += [FLOAT32, OWN_DTYPE]",
        "deciding += [OWN_DTYPE]",
    ),
    _of_judge(
        "16 bits decide nothing",
        "judging/conclude",
        "deciding += [FLOAT32, OWN_DTYPE]",
        "deciding += [FLOAT32]",
        "alone",
    ),
    _of_judge(
        "errors of 16 bits decide if float32 failed",
        "judging/judge",
        "if failed and (not deciding or deciding.is_passed)",
        "if failed and deciding and not deciding.is_passed",
        "alone",
    ),
    _of_judge(
        "modules in 16 bits of faults alone",
        "judging/judge",
        "if outcomes <= {PASSED} or is_of_16_bits:",
        "if is_of_16_bits:",
        "alone",
    ),
    _of_judge(
        "modules in 16 bits of no fault",
        "judging/judge",
        "if outcomes <= {PASSED} or is_of_16_bits:",
        "if outcomes <= {PASSED}:",
        "alone",
    ),
    _of_judge(
        "no position is named",
        "judging/judge",
        "place = structure.first",
        "place = None",
    ),
    _of_judge(
        "errors of 16 bits at a position up to 200 roundings",
        "checks/drawn",
        "Limits(over_all=2.0, at_a_place=2.0)",
        "Limits(over_all=2.0, at_a_place=200.0)",
        "alone",
    ),
    _of_judge(
        "arrays alone accuse nothing",
        "judging/conclude",
        "return BUG_SUSPECTED, screening",
        "return LIKELY_ROUNDING, screening",
    ),
    _of_judge(
        "two draws of rounding",
        "inference/controls/drawn_roundings",
        "DRAWS = 8",
        "DRAWS = 2",
        "alone",
    ),
    _of_judge(
        "arrays alone in bfloat16 up to no row ULP",
        "checks/arrays_alone",
        '"bfloat16": (2, 24, 0.25)',
        '"bfloat16": (0, 0, 0.25)',
    ),
    _of_judge(
        "a failed check is a lower precision",
        "judging/conclude",
        "    if not is_lower:",
        "    if is_lower:",
    ),
    _of_judge(
        "bugs are nondeterminism",
        "judging/conclude",
        "        return BUG_SUSPECTED, first(PRECISION) or bug",
        "        return NONDETERMINISTIC, bug",
    ),
)


def copy_of_head(folder: Path) -> None:
    """Write the files of the last commit to a folder."""
    archive = subprocess.run(
        ["git", "archive", "HEAD", *COPIED],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
    (folder / "sample_runs").symlink_to(ROOT / "sample_runs")


@contextmanager
def planted(mutant: Mutant, folder: Path) -> Iterator[None]:
    """Plant a mutant in a copy of the code until the end."""
    file = folder / mutant.file
    original = file.read_text()
    # code that moved on must not pass for a mutant that was killed
    if original.count(mutant.old) != 1:
        raise ValueError(f"{mutant.file} has {mutant.old!r} {original.count(mutant.old)} times")
    file.write_text(original.replace(mutant.old, mutant.new))
    try:
        yield
    finally:
        file.write_text(original)


def killer_of(mutant: Mutant, folder: Path) -> str:
    """Return the first test that fails, or the first line that moves, with a mutant, '' if it
    lived.
    """
    if mutant.pairs:
        before = _table_before(folder, mutant.pairs)
        with planted(mutant, folder):
            after = _table(folder, mutant.pairs)
        moved = [line for line in after if line not in before]
        return moved[0].strip("| ").replace(" | ", ", ") if moved else ""
    killer = ""
    with planted(mutant, folder):
        # cases that `make test` leaves out count as well
        for cases in ("not thorough", "thorough"):
            tests = ["-m", f"not browser and {cases}", *mutant.tests.split()]
            killer = killer or _first_failure(folder, tests)
    # a test that fails on its own notices nothing
    if killer and _first_failure(folder, [killer]):
        raise RuntimeError(f"{killer} fails without '{mutant.name}' as well")
    return killer


def _table(folder: Path, pairs: str) -> list[str]:
    """Return the lines that `benchmarks.power` prints of some pairs."""
    command = [sys.executable, "-m", "benchmarks.power", *PAIRS[pairs]]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    # a judge that fails moves the table
    return (done.stdout or done.stderr[-200:]).splitlines()


_table_before = cache(_table)


def _first_failure(folder: Path, arguments: list[str]) -> str:
    command = [sys.executable, "-m", "pytest", "-x", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    # a parameter in its name may have spaces
    failed = re.search(r"^(?:FAILED|ERROR) (\S+?(?:\[.*?\])?)(?: - |$)", done.stdout, re.MULTILINE)
    if failed is None and done.returncode not in (0, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise RuntimeError(f"pytest {arguments} did not run:\n{done.stdout}{done.stderr}")
    return failed[1] if failed else ""


def main(words: list[str]) -> int:
    """Run the mutants whose names contain one of the words, or all; print a table."""
    chosen = [one for one in MUTANTS if not words or any(word in one.name for word in words)]
    lived = 0
    print("| mutant | file | noticed by |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        copy_of_head(folder)
        for mutant in chosen:
            killer = killer_of(mutant, folder)
            lived += not killer
            print(f"| {mutant.name} | {mutant.file} | {killer or '**lived**'} |", flush=True)
    print(f"\n{len(chosen) - lived} of {len(chosen)} noticed")
    return 1 if lived else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
