"""Runs of responses: what servers sent, written into the tables of all runs."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..errors import UsageError
from ..numerics.top_tokens import summary_of
from ..responses.alignment import sequence
from ..responses.pairing import ResponsePair, vocabulary_size
from ..responses.records import UNKNOWN_TOKEN, Response, ResponseSide
from .file.database import Database
from .file.records import FIGURES, MAX_VALUES, Prompt, Provenance, RunHeader, SideHeader
from .new_run import new_run
from .store.store import Store
from .tables.pairs import insert_evidence, insert_pair
from .tables.positions import POSITION, SIDE_POSITION, TOP_TOKEN
from .tables.responses import CHOSEN, RESPONSE, SAME, digest_of
from .tables.run import VOCABULARY, insert_header, insert_prompts, insert_sides

if TYPE_CHECKING:
    from ..verdict import Verdict

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
    with new_run(store, name, run_id, values * _BYTES_A_VALUE) as (database, partial, created):
        database.execute("BEGIN")
        dtypes = {pair.compute_dtype for pair in pairs}
        counts = [int(side.rows.counts.max(initial=1)) for side in sides]
        header = RunHeader(
            name,
            (dtypes.pop() if len(dtypes) == 1 else None) or "",
            vocabulary_size(sides) or 0,
            tuple(map(_prompt, zip(*(side.responses for side in sides), strict=True))),
            tuple(SideHeader(side.name, "", "float32") for side in sides),
            origin,
            keep=FIGURES,
            k=max(counts),
            holds="logprob",
        )
        insert_header(database, created, header, header.rows)
        insert_prompts(database, header)
        mappings = [response.texts for side in sides for response in side.responses]
        # the first counts
        if texts := {token: text for each in reversed(mappings) for token, text in each.items()}:
            VOCABULARY.insert(database, token_id=list(texts), text=list(texts.values()))
        digests = [digest_of(side.responses) for side in sides]
        values_digests = [(each, "float64") for each in digests]
        insert_sides(database, header, digests, values_digests, counts, sides[0].keys)
        for index, side in enumerate(sides):
            _insert_side(database, index, side)
        verdict_of_pair = {verdict.pair: verdict for verdict in verdicts}
        for index, pair in enumerate(pairs):
            _insert_pair(database, index, pair, verdict_of_pair.get(index))
        database.execute("COMMIT")
    return partial.path.stem


def _prompt(responses: Sequence[Response]) -> Prompt:
    """Return the reference's tokens, as far as a side sent rows. Texts are '' if unknown."""
    reference = responses[0]
    lasts = [int(response.rows.positions.max(initial=0)) for response in responses]
    positions = max(lasts) + 1
    tokens = sequence(reference)[:positions]
    tokens = (*tokens, *[UNKNOWN_TOKEN] * (positions - len(tokens)))
    is_known = UNKNOWN_TOKEN not in tokens and reference.keys == "token_id"
    texts = tuple(reference.texts.get(token, "") for token in tokens)
    return Prompt(positions, tokens if is_known else (), texts if any(texts) else ())


def _insert_side(database: Database, index: int, side: ResponseSide) -> None:
    """Insert what a side sent, all responses at once: an insert costs 2 ms however small it is."""
    responses, rows, prompts = side.responses, side.rows, side.prompts
    RESPONSE.insert(
        database,
        side=index,
        prompt=list(range(len(responses))),
        **{name: [getattr(response, name) for response in responses] for name in SAME},
        is_start_known=[response.start_known for response in responses],
        asked=[response.top_logprobs for response in responses],
        tokens=[json.dumps(response.tokens) for response in responses],
        settings=[json.dumps(_settings(response), sort_keys=True) for response in responses],
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


def _settings(response: Response) -> dict[str, object]:
    """Return a response's settings, with the values of chosen tokens that their lists
    contradict.
    """
    every = zip(response.rows.positions.tolist(), response.rows.chosen.tolist(), strict=True)
    values = {position: value for position, value in every if math.isfinite(value)}
    return {**response.settings, CHOSEN: values} if values else dict(response.settings)


def _insert_pair(
    database: Database, index: int, pair: ResponsePair, verdict: Verdict | None
) -> None:
    """Insert the figures of a pair, and its verdict."""
    insert_pair(database, index, summary_of(pair.figures), verdict)
    POSITION.insert(
        database,
        pair=index,
        prompt=pair.prompts,
        position=pair.positions,
        nonfinite_mismatch=0,
        reference_margin_ulps=pair.margin_ulps[0],
        variant_margin_ulps=pair.margin_ulps[1],
        **{name: getattr(pair.figures, name) for name in _FIGURES},
    )
    if verdict:
        ids = np.column_stack([pair.prompts, pair.positions]).astype(np.int32)
        insert_evidence(database, index, ids, verdict.evidence, verdict.floors)
