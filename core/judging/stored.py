"""Judge and explain a stored run. Judging makes a new run of the same bits; the old one stays."""

from dataclasses import replace

from ..checks.pair import PairFigures
from ..command_name import COMMAND
from ..errors import StoreError, UsageError
from ..evidence import VALIDITY
from ..responses.pairing import compare_sides
from ..rl.causes import NO_TEMPERATURE, explain_tokens
from ..rl.queries import sample_tokens
from ..runs.file.records import StoredPair
from ..runs.new_run import revise
from ..runs.reader import RunReader
from ..runs.store.store import Store
from ..verdict import FloorRows, Verdict
from .dump_controls import MakeControls, UploadedControls, judge_upload
from .explain.causes import Explanation, explain, explain_lists
from .explain.rows import rows_of_run


def check_upload(run: RunReader) -> None:
    """Raise UsageError for a capture, which is judged with its model."""
    if run.header.provenance.kind != "upload":
        raise UsageError(
            f"run '{run.run_id}' is a capture; judge its paths with `{COMMAND} judge`.",
        )
    if [pair.index for pair in run.pairs] != list(range(len(run.sides) - 1)):
        raise StoreError(
            f"run '{run.run_id}': its list of pairs is not that of its sides; the file is damaged.",
        )


def judge_stored(
    store: Store,
    run: RunReader,
    controls: UploadedControls,
    *,
    make_controls: MakeControls | None = None,
    name: str | None = None,
    note: str = "",
) -> str:
    """Store `run` once more with the verdict by its controls, listed in its place; return the new
    run's id.
    """
    check_upload(run)
    with run.decoding("figures"):
        earlier = [stored_verdict(run, pair) for pair in run.pairs]
        verdicts = judge_upload(
            run,
            [[row for row in verdict.evidence if row.group == VALIDITY] for verdict in earlier],
            [run.generations[index] for index in sorted(run.generations)],
            controls,
            earlier,
            make_controls,
        )
    note = f"Judged from run {run.run_id}. {note}".rstrip()
    return revise(store, run, name or f"{run.header.name}, judged", verdicts, note)


def stored_verdict(run: RunReader, pair: StoredPair) -> Verdict:
    floors = []
    every = run.rows("floor_position", pair=pair.index)
    for dtype, rows in every.groupby("compute_dtype", sort=False):
        if len(rows) == run.header.rows:
            columns = (rows[name].to_numpy(float) for name in ("pair_rms", "floor_rms"))
            floors.append(FloorRows(str(dtype), *columns))
    return Verdict(
        pair.verdict or "",
        pair.because or "",
        tuple(run.evidence(pair.index)),
        pair.noise_ratio,
        pair.first_place,
        tuple(floors),
        pair.index,
    )


def explain_pair(run: RunReader, pair: int) -> Explanation:
    """Return the causes of a stored pair; of a judged one each says how many noise floors it
    leaves.
    """
    if run.has_rollouts:
        tokens = sample_tokens(run)
        says = f"Checked {len(tokens.r):,} of {run.compared_positions(pair):,} tokens."
        if tokens.entropy is None:
            says = f"{says} {NO_TEMPERATURE}"
        return Explanation(explain_tokens(tokens), says)
    if run.header.is_list:
        sides = run.responses()
        both = sides[0], sides[pair + 1]
        return explain_lists(compare_sides(*both), *both)
    if not run.header.has_tokens:
        return Explanation([], "Common causes are of logits.")
    if run.pairs[pair].summary.bit_identical:
        return Explanation([])
    explanation = explain(rows_of_run(run, pair))
    floor = 0.0
    for row in run.evidence(pair):
        one = row.figures
        if isinstance(one, PairFigures) and one.compute_dtype == run.header.compute_dtype:
            floor = max(floor, one.floor_rms_logits)
    if not floor:
        return explanation
    causes = [
        replace(one, left_floors=one.left_rms and one.left_rms / floor)
        for one in explanation.causes
    ]
    return replace(explanation, causes=causes)
