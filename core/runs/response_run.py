"""Runs of responses: what servers sent, written into the tables of all runs."""

import json
import math
from collections.abc import Sequence

import numpy as np

from ..errors import UsageError
from ..numerics.top_tokens import summary_of
from ..responses.alignment import sequence
from ..responses.pairing import ResponsePair
from ..responses.records import UNKNOWN_TOKEN, Response, ResponseSide
from ..verdict import Verdict
from .file.database import Database
from .file.records import FIGURES, MAX_VALUES, Prompt, Provenance, RunHeader, SideHeader
from .new_run import new_run
from .store.store import Store
from .tables.pairs import insert_evidence, insert_pair
from .tables.positions import POSITION, SIDE_POSITION, TOP_TOKEN
from .tables.responses import CHOSEN, RESPONSE, digest_of
from .tables.run import VOCABULARY, insert_header, insert_prompts, insert_sides

_BYTES_A_VALUE = 24  # in the file, uncompressed
_FIGURES = (
    "neq",
    "bit_identical",
    "max_abs",
    "rms",
    "is_flip",
    "is_tie",
    "could_flip",
    "reference_token",
    "variant_token",
    "reference_margin",
    "variant_margin",
)


def write_responses(
    store: Store,
    name: str,
    origin: Provenance,
    sides: Sequence[ResponseSide],
    pairs: Sequence[ResponsePair],
    verdicts: Sequence[Verdict] = (),
    *,
    run_id: str | None = None,
) -> str:
    """Store aligned sides and their pairs as a run; it appears when it is whole. -> its id"""
    values = sum(len(side.rows.values) for side in sides)
    if values > MAX_VALUES:
        raise UsageError(
            f"{values:,} values are more than a run of lists holds ({MAX_VALUES:,}); store whole"
            " rows as a dump of arrays.",
        )
    with new_run(store, name, run_id, values * _BYTES_A_VALUE) as (database, created):
        database.execute("BEGIN")
        dtypes = {pair.compute_dtype or "" for pair in pairs}
        responses = [response for side in sides for response in side.responses]
        vocab = {response.vocab or 0 for response in responses} - {0}
        counts = [int(side.rows.counts.max(initial=1)) for side in sides]
        header = RunHeader(
            name,
            dtypes.pop() if len(dtypes) == 1 else "",
            vocab.pop() if len(vocab) == 1 else 0,
            tuple(map(_prompt, zip(*(side.responses for side in sides), strict=True))),
            tuple(SideHeader(side.name, "", "float32") for side in sides),
            origin,
            keep=FIGURES,
            k=max(counts),
            holds="logprob",
        )
        insert_header(database, created, header, header.rows)
        insert_prompts(database, header)
        texts: dict[int, str] = {}
        # the first counts
        for response in reversed(responses):
            texts |= response.texts
        if texts:
            VOCABULARY.insert(database, token_id=list(texts), text=list(texts.values()))
        digests = [digest_of(side.responses) for side in sides]
        values_digests = [(each, "float64") for each in digests]
        insert_sides(database, header, digests, values_digests, counts, sides[0].keys)
        for index, side in enumerate(sides):
            _insert_side(database, index, side)
        verdict_of_pair = {each.pair: each for each in verdicts}
        for index, pair in enumerate(pairs):
            verdict = verdict_of_pair.get(index)
            insert_pair(database, index, summary_of(pair.figures), verdict)
            POSITION.insert(
                database,
                pair=index,
                prompt=pair.prompts,
                position=pair.positions,
                nonfinite_mismatch=0,
                reference_margin_ulps=pair.margin_ulps[0],
                variant_margin_ulps=pair.margin_ulps[1],
                **{figure: getattr(pair.figures, figure) for figure in _FIGURES},
            )
            if verdict is not None:
                ids = np.column_stack([pair.prompts, pair.positions]).astype(np.int32)
                insert_evidence(database, index, ids, verdict.evidence, verdict.floors)
        database.execute("COMMIT")
    return database.path.stem


def _prompt(responses: Sequence[Response]) -> Prompt:
    """Return the reference's tokens, as far as a side sent rows. Texts are '' if unknown."""
    reference = responses[0]
    lasts = [int(response.rows.positions.max(initial=0)) for response in responses]
    positions = max(lasts) + 1
    tokens = (*sequence(reference), *[UNKNOWN_TOKEN] * positions)[:positions]
    is_known = UNKNOWN_TOKEN not in tokens and reference.keys == "token_id"
    texts = tuple(reference.texts.get(token, "") for token in tokens)
    return Prompt(positions, tokens if is_known else (), texts if any(texts) else ())


def _insert_side(database: Database, index: int, side: ResponseSide) -> None:
    """Insert what a side sent, all responses at once: an insert costs 2 ms however small it is."""
    responses, rows, prompts = side.responses, side.rows, side.prompts
    settings = []
    for response in responses:
        every = zip(response.rows.positions.tolist(), response.rows.chosen.tolist(), strict=True)
        # of chosen tokens that their lists contradict
        values = {position: value for position, value in every if math.isfinite(value)}
        chosen = {CHOSEN: values} if values else {}
        settings.append(json.dumps({**response.settings, **chosen}, sort_keys=True))
    RESPONSE.insert_records(
        database,
        responses,
        side=index,
        prompt=list(range(len(responses))),
        is_start_known=[response.start_known for response in responses],
        is_processed=None,
        asked=[response.top_logprobs for response in responses],
        tokens=[json.dumps(response.tokens) for response in responses],
        settings=settings,
        warnings=[json.dumps(response.warnings) for response in responses],
    )
    SIDE_POSITION.insert(
        database,
        side=index,
        prompt=prompts,
        position=rows.positions,
        logsumexp=0.0,
        best=rows.best,
        chosen=np.ma.masked_equal(rows.targets, UNKNOWN_TOKEN),
        missing=rows.missing,
    )
    TOP_TOKEN.insert(
        database,
        side=index,
        prompt=prompts[rows.row_of],
        position=rows.positions[rows.row_of],
        rank=np.arange(len(rows.values)) - rows.offsets[rows.row_of],
        token_id=rows.token_ids,
        logit=rows.values,
    )
