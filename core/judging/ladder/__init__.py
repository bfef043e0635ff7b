"""Evidence in, verdict out: is a pair's divergence rounding, or a bug? Pure: figures come from
core.inference.controls.judge_model or a run.

Nothing is judged against a constant number of logits or ULPs. A pair is held against this checkpoint's own rounding
floor: what mathematically identical reorderings of the same model, on the same prompts, in the same dtype do to its
logits (docs/verdict_calibration.md).
"""
