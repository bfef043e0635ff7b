"""Small runs with outputs of modules, every figure of which is planted."""

import numpy as np

from core.numerics.formats import BFLOAT16
from core.runs.tables.layers import FLOOR, LayerModule, LayerPart
from core.runs.writer import RunWriter
from tests.core.runs.damaging import damaged
from tests.core.runs.made_runs import calm_sides, header_of

MODULES = (
    LayerModule(0, "model.embed", "embedding"),
    LayerModule(1, "model.layers.0.norm", "norm", 0),
    LayerModule(2, "model.layers.0.attn.<b>q</b>_proj", "projection", 0),
    LayerModule(3, "model.layers.0", "residual", 0),
    LayerModule(4, "model.layers.1", "residual", 1),
    LayerModule(5, "logits", "head"),
)
WIDTH = 8


def outputs(module, prompt, positions):
    """Bits of bfloat16, [positions, WIDTH], the same at every call."""
    random = np.random.default_rng(1000 * prompt + module.ordinal)
    return random.uniform(1, 1.5, (positions, WIDTH)).astype(BFLOAT16.values).view(np.uint16)


def layer_run(
    store,
    changed,
    *,
    chosen=((0, 1, 2), (0, 1, 2, 3, 4)),
    lengths=(3, 5),
    run_id=None,
    flips=(),
):
    """Two prompts, six modules. changed: (ordinal, prompt, position) -> ULPs by which the variant's
    first element differs there.

    The floor's one reordering moves every element by an ULP, the embedding's by none. flips: rows
    whose argmax is token 7 on the reference and token 8 on the variant.
    """
    header = header_of(lengths=lengths)
    with RunWriter(store, header, run_id=run_id) as writer:
        logits = calm_sides(header)
        for row in flips:
            for side, token in enumerate((7, 8)):
                logits[side][row, token] = 0x4180  # 16
        rows = writer.layers(chosen)

        def write_outputs(side, ulps_of):
            for prompt, positions in enumerate(chosen):
                for module in MODULES if positions else ():
                    bits = outputs(module, prompt, lengths[prompt])
                    bits += ulps_of(module, prompt, bits)
                    part = LayerPart(prompt, module, 0, bits[list(positions)], "bfloat16")
                    rows.write(side, part)
                rows.end(side, prompt)

        def moved(module, prompt, bits):
            ulps = np.zeros_like(bits)
            for (ordinal, of_prompt, position), count in changed.items():
                if (ordinal, of_prompt) == (module.ordinal, prompt):
                    ulps[position, 0] = count
            return ulps

        writer.write(0, 0, logits[0])
        write_outputs(0, lambda *_: np.uint16(0))
        write_outputs(FLOOR, lambda module, *_: np.uint16(module.kind != "embedding"))
        writer.write(1, 0, logits[1])
        write_outputs(1, moved)
        return writer.finish()


# First the projection in prompt 0, the stream of block 0 in prompt 1; twice the difference after
# every module.
GROWING = {
    (2, 0, 1): 1,
    (3, 0, 1): 1,
    (3, 0, 2): 2,
    (4, 0, 1): 4,
    (4, 0, 2): 8,
    (5, 0, 2): 16,
    (3, 1, 3): 1,
    (4, 1, 3): 2,
    (4, 1, 4): 2,
    (5, 1, 4): 4,
}


def with_kernels(store, run_id):
    """The same run, whose sides launched one kernel in two modules, in another shape on each
    side.
    """
    rows = [
        f"({side}, {number}, '{module}', 'torch', 'aten::mean', 'bfloat16 {side + 1}x8', 1, 2.0)"
        for side in range(2)
        for number, module in enumerate(("model.embed", "model.layers.0.norm"))
    ]
    damaged(
        store.path_of(run_id),
        f"INSERT INTO kernel VALUES {', '.join(rows)}",
        "INSERT INTO kernel_side VALUES (0, 1, 1), (1, 1, 1)",
    )
    return run_id
