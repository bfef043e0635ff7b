"""Small runs with key/value caches and continuations, every figure of which is planted."""

import numpy as np

from core.numerics.formats import BFLOAT16
from core.runs.file.records import Generation, Prompt, Provenance, RunHeader, SideHeader
from core.runs.tables.kv_cache import KvPart
from core.runs.writer import RunWriter
from tests.core.runs.made_runs import header_of, writing

VOCAB = 40
GIVEN = 5
KEY_VALUE = ("key", "value")
# What each side makes of prompts 0 and 1; prompt 2 is only scored. The first variant parts in
# prompt 0, the second never.
CONTINUED = {
    0: (
        (10, 11, 12, 13, 14, 15, 16, 17),
        (10, 11, 22, 23, 24, 25, 26, 27),
        (10, 11, 12, 13, 14, 15, 16, 17),
    ),
    1: (
        (30, 31, 32, 33, 34, 35, 36, 37),
        (30, 31, 32, 33, 34, 35, 36, 37),
        (30, 31, 32, 33, 34, 35, 36, 37),
    ),
}
PARTING = GIVEN - 1 + 2  # position 4 chose the first generated token, position 6 the third


def cache(seed, heads=2, positions=5, width=16):
    """[heads, positions, width] bits of bfloat16."""
    return (
        np.random.default_rng(seed)
        .standard_normal((heads, positions, width))
        .astype(BFLOAT16.values)
        .view(np.uint16)
    )


def kv_run(store, parts, *, lengths=(3, 5)):
    """A run of random logits with these caches, each with the side that kept it; returns its id."""
    with writing(store, header_of(lengths=lengths)) as writer:
        for side, part in parts:
            writer.write_kv(side, part)
        return writer.finish()


def both(reference, variant):
    """A part of the reference, and the variant's with these bits."""
    return [(0, reference), (1, KvPart(*reference.key, reference.first_position, variant))]


def continued_run(store, *, is_confirmed=True):
    """Three sides, three prompts of 12, 12 and 6 positions, vocabulary of 40; see CONTINUED.

    At the first flip the better token leads by 0.125 (of 10: two ULPs of bfloat16);
    is_confirmed=False: the variant's stored logits prefer the reference's token there. Caches, of
    the first variant only from layer 1 on, differ; the second's are equal.
    """
    prompt_ids = tuple(range(1, 1 + GIVEN))
    # the last generated token is not read again
    fed = [(*prompt_ids, *whole[:-1]) for whole, *_ in CONTINUED.values()]
    fed.append(tuple(range(6)))
    vocabulary = {token: f" w{token}" for token in range(VOCAB)}
    vocabulary[22] = " <b>two</b>\n"
    prompts = tuple(Prompt(len(ids), ids, tuple(vocabulary[t] for t in ids)) for ids in fed)
    sides = tuple(
        SideHeader(path, path, "bfloat16") for path in ("prefill", "decode", "decode+batch:8")
    )
    header = RunHeader(
        "Continued",
        "bfloat16",
        VOCAB,
        prompts,
        sides,
        Provenance("capture", model="planted", device="cpu"),
        vocabulary,
    )
    with RunWriter(store, header, run_id="continued") as writer:
        for side in range(3):
            logits = np.random.default_rng(0).standard_normal((header.rows, VOCAB))
            for row, (prompt, position) in enumerate(header.places()):
                if prompt in CONTINUED and position >= GIVEN - 1:
                    logits[row, CONTINUED[prompt][0][position - GIVEN + 1]] = 10
            is_better = side == 1 and is_confirmed
            logits[PARTING, CONTINUED[0][1][2]] = 10.125 if is_better else 9.875
            writer.write(side, 0, logits.astype(BFLOAT16.values).view(np.uint16))
        for prompt, ids in enumerate(fed):
            for layer in range(4):
                for kind in KEY_VALUE:
                    bits = cache(
                        100 * prompt + 10 * layer + KEY_VALUE.index(kind),
                        positions=len(ids),
                    )
                    variant_bits = bits.copy()
                    variant_bits[layer % 2, 2:, : 2 * layer] ^= 1
                    for side, of_side in enumerate((bits, variant_bits, bits)):
                        writer.write_kv(side, KvPart(prompt, layer, kind, 0, of_side.copy()))
        for prompt, tokens in CONTINUED.items():
            spoken = tuple(
                "".join(vocabulary[token] for token in continuation) for continuation in tokens
            )
            writer.write_generation(Generation(prompt, GIVEN, 8, tokens, spoken))
        return writer.finish()
