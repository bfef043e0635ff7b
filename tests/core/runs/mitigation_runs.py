"""A run with mitigations whose every figure is planted."""

from core.runs.tables.mitigations import MitigationRow, insert_mitigations
from tests.core.runs.made_runs import header_of, writing


def row(
    name,
    neq,
    rms,
    flips,
    shares,
    dtype="bfloat16",
):
    return MitigationRow(
        name=name,
        what=f"Changes {name}.",
        compute_dtype=dtype,
        elements=900,
        neq=neq,
        max_abs=10 * rms,
        rms=rms,
        max_ulps=neq,
        flips=flips,
        noise_ratio=rms / 0.02,
        reference_tokens_per_second=1000 * shares[0],
        variant_tokens_per_second=100 * shares[1],
        reference_share=shares[0],
        variant_share=shares[1],
        reference_share_low=shares[0],
        reference_share_high=shares[0],
        variant_share_low=shares[1],
        variant_share_high=shares[1],
        turns=6,
    )


ROWS = (
    row("baseline", 600, 0.02, 3, (1.0, 1.0)),
    row("float32", 700, 2e-6, 0, (0.5, 0.6), "float32"),
    MitigationRow("TF32 off", "Full operands.", "bfloat16", refusal="TF32 exists on CUDA only."),
    row("batch-invariant kernels", 0, 0.0, 0, (0.8, 0.75)),
)


def mitigation_run(store, run_id="mitigations", rows=ROWS):
    header = header_of(lengths=(3,))
    with writing(store, header, run_id=run_id) as writer:
        if rows:
            writer.put(insert_mitigations, 0, rows)
        return writer.finish()
