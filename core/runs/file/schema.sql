-- The run file, schema version 4. One file holds one run and is never changed once it is in place. Version 1 had no tables kv,
-- kv_position, generation, generated_token and floor_position and no text in evidence, version 2 no tables layer, layer_position
-- and op, version 3 no table digest and no low, high and turns of the shares in remedy and price; such files are read as runs without them.
-- A *row* of a side is one position of one prompt. Figures are defined in the metric contract (docs/metrics.md).

CREATE TABLE run (
    run_id VARCHAR NOT NULL, name VARCHAR NOT NULL, created TIMESTAMP NOT NULL, kind VARCHAR NOT NULL, model VARCHAR NOT NULL,
    revision VARCHAR NOT NULL, compute_dtype VARCHAR NOT NULL, vocab INTEGER NOT NULL, positions INTEGER NOT NULL,
    device VARCHAR NOT NULL, device_name VARCHAR NOT NULL, seed HUGEINT, command VARCHAR NOT NULL, note VARCHAR NOT NULL,
    versions VARCHAR NOT NULL, schema_version INTEGER NOT NULL
);
COMMENT ON TABLE run IS 'provenance of the run; exactly one row';
COMMENT ON COLUMN run.run_id IS 'the file name without .duckdb';
COMMENT ON COLUMN run.name IS 'what a person called it';
COMMENT ON COLUMN run.created IS 'when the capture or upload began, UTC';
COMMENT ON COLUMN run.kind IS 'capture: forwards run by ULPscope; upload: a dump from elsewhere';
COMMENT ON COLUMN run.model IS 'folder or hub id of the model, empty if unknown';
COMMENT ON COLUMN run.revision IS 'hub revision, or sha256: and the digest of a local folder''s weight files; empty if unknown';
COMMENT ON COLUMN run.compute_dtype IS 'dtype the logits were computed in; ULPs are counted in it';
COMMENT ON COLUMN run.vocab IS 'logits a position, number of tokens';
COMMENT ON COLUMN run.positions IS 'positions of all prompts together';
COMMENT ON COLUMN run.device IS 'cpu, cuda, ...; empty if unknown';
COMMENT ON COLUMN run.device_name IS 'processor or GPU name; empty if unknown';
COMMENT ON COLUMN run.seed IS 'seed set before each side, null if none';
COMMENT ON COLUMN run.command IS 'command line that repeats the capture';
COMMENT ON COLUMN run.note IS 'free text, such as how the compute dtype was found';
COMMENT ON COLUMN run.versions IS 'JSON object: library or setting to its version or value';
COMMENT ON COLUMN run.schema_version IS 'version of this schema';

CREATE TABLE prompt (prompt INTEGER NOT NULL, positions INTEGER NOT NULL);
COMMENT ON TABLE prompt IS 'the token sequences of the run';
COMMENT ON COLUMN prompt.prompt IS '0-based index';
COMMENT ON COLUMN prompt.positions IS 'its length, number of positions';

CREATE TABLE token (prompt INTEGER NOT NULL, position INTEGER NOT NULL, token_id INTEGER, text VARCHAR);
COMMENT ON TABLE token IS 'the tokens fed to the model; empty if a dump brought none';
COMMENT ON COLUMN token.prompt IS 'index of the prompt';
COMMENT ON COLUMN token.position IS '0-based token index in its prompt';
COMMENT ON COLUMN token.token_id IS 'token id, null if unknown';
COMMENT ON COLUMN token.text IS 'text of the token, null if unknown';

CREATE TABLE vocabulary (token_id INTEGER NOT NULL, text VARCHAR NOT NULL);
COMMENT ON TABLE vocabulary IS 'texts of the vocabulary as far as known, so that a viewer needs no tokenizer';
COMMENT ON COLUMN vocabulary.token_id IS 'token id, the column of the logits';
COMMENT ON COLUMN vocabulary.text IS 'text of the token';

CREATE TABLE side (
    side INTEGER NOT NULL, name VARCHAR NOT NULL, path VARCHAR NOT NULL, compute_dtype VARCHAR NOT NULL,
    source_dtype VARCHAR NOT NULL, sha256 VARCHAR NOT NULL, bit_class INTEGER NOT NULL
);
COMMENT ON TABLE side IS 'one way the logits were computed; side 0 is the reference';
COMMENT ON COLUMN side.side IS '0-based index';
COMMENT ON COLUMN side.name IS 'name of the side';
COMMENT ON COLUMN side.path IS 'path that computed it, empty if unknown';
COMMENT ON COLUMN side.compute_dtype IS 'dtype of the stored bits';
COMMENT ON COLUMN side.source_dtype IS 'dtype the array was given in; widening the stored bits restores it exactly';
COMMENT ON COLUMN side.sha256 IS 'SHA-256 of its stored bits, rows in order, little-endian';
COMMENT ON COLUMN side.bit_class IS 'sides of the same number are bit-identical';

CREATE TABLE digest (side INTEGER NOT NULL, dtype VARCHAR NOT NULL, sha256 VARCHAR NOT NULL);
COMMENT ON TABLE digest IS 'what equal values are known by in any run; not in files written before it was, where side.sha256 is of run.compute_dtype';
COMMENT ON COLUMN digest.side IS 'index of the side';
COMMENT ON COLUMN digest.dtype IS 'bfloat16 where every value of the side is one, else float16 where every value is one, else float32';
COMMENT ON COLUMN digest.sha256 IS 'SHA-256 of the side''s values as bits of dtype, rows in order, little-endian';

CREATE TABLE logits (
    side USMALLINT NOT NULL, prompt INTEGER NOT NULL, position INTEGER NOT NULL, tile USMALLINT NOT NULL,
    bits BLOB NOT NULL USING COMPRESSION uncompressed
);
COMMENT ON TABLE logits IS 'the complete logits, bit for bit, in tiles of 8192 bytes';
COMMENT ON COLUMN logits.side IS 'index of the side';
COMMENT ON COLUMN logits.prompt IS 'index of the prompt';
COMMENT ON COLUMN logits.position IS '0-based token index in its prompt';
COMMENT ON COLUMN logits.tile IS '0-based tile; tile t starts at byte 8192 t of the row';
COMMENT ON COLUMN logits.bits IS 'raw little-endian bits in the compute dtype; the last tile of a row is shorter';

CREATE TABLE side_position (
    side INTEGER NOT NULL, prompt INTEGER NOT NULL, position INTEGER NOT NULL, logsumexp DOUBLE
);
COMMENT ON TABLE side_position IS 'figures of one side at one position';
COMMENT ON COLUMN side_position.side IS 'index of the side';
COMMENT ON COLUMN side_position.prompt IS 'index of the prompt';
COMMENT ON COLUMN side_position.position IS '0-based token index in its prompt';
COMMENT ON COLUMN side_position.logsumexp IS 'log of the sum of exp(logit), nats; probability = exp(logit - logsumexp); null where NaN';

CREATE TABLE top_token (
    side INTEGER NOT NULL, prompt INTEGER NOT NULL, position INTEGER NOT NULL, rank INTEGER NOT NULL,
    token_id INTEGER NOT NULL, logit DOUBLE NOT NULL
);
COMMENT ON TABLE top_token IS 'the 20 largest logits of each side and position, equal ones by token id';
COMMENT ON COLUMN top_token.side IS 'index of the side';
COMMENT ON COLUMN top_token.prompt IS 'index of the prompt';
COMMENT ON COLUMN top_token.position IS '0-based token index in its prompt';
COMMENT ON COLUMN top_token.rank IS 'place by logit, counted from 0: 0 is the argmax, which pages and downloads call rank 1';
COMMENT ON COLUMN top_token.token_id IS 'token id';
COMMENT ON COLUMN top_token.logit IS 'its logit, exact';

CREATE TABLE pair (
    pair INTEGER NOT NULL, reference INTEGER NOT NULL, variant INTEGER NOT NULL, bit_identical BOOLEAN NOT NULL, neq BIGINT NOT NULL,
    neq_share DOUBLE NOT NULL, max_abs DOUBLE NOT NULL, rms DOUBLE NOT NULL, max_ulps BIGINT NOT NULL, mean_ulps DOUBLE NOT NULL,
    nonfinite_mismatch BIGINT NOT NULL, flips INTEGER NOT NULL, ties INTEGER NOT NULL, near_ties INTEGER NOT NULL, mean_kl DOUBLE,
    max_kl DOUBLE, same_top1 DOUBLE NOT NULL, min_margin DOUBLE, is_histogram_exact BOOLEAN NOT NULL, verdict VARCHAR, because VARCHAR,
    noise_ratio DOUBLE
);
COMMENT ON TABLE pair IS 'summary of the reference against each variant';
COMMENT ON COLUMN pair.pair IS '0-based index';
COMMENT ON COLUMN pair.reference IS 'index of the reference side';
COMMENT ON COLUMN pair.variant IS 'index of the variant side';
COMMENT ON COLUMN pair.bit_identical IS 'every bit pattern equal, so -0 and +0 are not';
COMMENT ON COLUMN pair.neq IS 'elements whose values differ; +0 equals -0, NaN equals NaN';
COMMENT ON COLUMN pair.neq_share IS 'neq over positions x vocab';
COMMENT ON COLUMN pair.max_abs IS 'largest absolute difference, logits, over elements finite on both sides';
COMMENT ON COLUMN pair.rms IS 'root mean square of the difference, logits, over elements finite on both sides';
COMMENT ON COLUMN pair.max_ulps IS 'largest distance, ULPs of the compute dtype';
COMMENT ON COLUMN pair.mean_ulps IS 'mean distance, ULPs of the compute dtype';
COMMENT ON COLUMN pair.nonfinite_mismatch IS 'elements where a NaN or infinity is not met by the same';
COMMENT ON COLUMN pair.flips IS 'positions whose argmax differs';
COMMENT ON COLUMN pair.ties IS 'positions with a margin of 0 on either side';
COMMENT ON COLUMN pair.near_ties IS 'positions whose smaller margin is at most twice their largest difference';
COMMENT ON COLUMN pair.mean_kl IS 'mean KL(reference || variant), nats, over positions where it is defined';
COMMENT ON COLUMN pair.max_kl IS 'largest KL(reference || variant), nats';
COMMENT ON COLUMN pair.same_top1 IS 'share of positions with the same argmax';
COMMENT ON COLUMN pair.min_margin IS 'smallest margin over both sides, logits';
COMMENT ON COLUMN pair.is_histogram_exact IS 'false: distances of 65536 and more are rounded down to powers of two';
COMMENT ON COLUMN pair.verdict IS 'identical, rounding, nondeterministic, bug suspected, invalid dump or undecided, with rows in evidence; null: not judged';
COMMENT ON COLUMN pair.because IS 'the verdict in a sentence, null: not judged';
COMMENT ON COLUMN pair.noise_ratio IS 'rms of the pair over rms of the rounding floor, both in float32 (float64 for a mixture of experts) if they could be had; null where not measured';

CREATE TABLE position (
    pair INTEGER NOT NULL, prompt INTEGER NOT NULL, position INTEGER NOT NULL, neq BIGINT NOT NULL, bit_identical BOOLEAN NOT NULL,
    max_abs DOUBLE NOT NULL, rms DOUBLE NOT NULL, max_ulps BIGINT NOT NULL, max_ulps_token INTEGER NOT NULL,
    mean_ulps DOUBLE NOT NULL, nonfinite_mismatch BIGINT NOT NULL, reference_token INTEGER, variant_token INTEGER,
    is_flip BOOLEAN NOT NULL, reference_margin DOUBLE, variant_margin DOUBLE, reference_margin_ulps BIGINT,
    variant_margin_ulps BIGINT, near_tie BOOLEAN NOT NULL, is_tie BOOLEAN NOT NULL, kl DOUBLE
);
COMMENT ON TABLE position IS 'figures of a pair at each position';
COMMENT ON COLUMN position.pair IS 'index of the pair';
COMMENT ON COLUMN position.prompt IS 'index of the prompt';
COMMENT ON COLUMN position.position IS '0-based token index in its prompt; its logits score the next token';
COMMENT ON COLUMN position.neq IS 'elements whose values differ';
COMMENT ON COLUMN position.bit_identical IS 'every bit pattern equal';
COMMENT ON COLUMN position.max_abs IS 'largest absolute difference, logits';
COMMENT ON COLUMN position.rms IS 'root mean square of the difference, logits';
COMMENT ON COLUMN position.max_ulps IS 'largest distance, ULPs of the compute dtype';
COMMENT ON COLUMN position.max_ulps_token IS 'lowest token id with that distance';
COMMENT ON COLUMN position.mean_ulps IS 'mean distance, ULPs of the compute dtype';
COMMENT ON COLUMN position.nonfinite_mismatch IS 'elements where a NaN or infinity is not met by the same';
COMMENT ON COLUMN position.reference_token IS 'argmax of the reference, lowest id on ties; null where all is NaN';
COMMENT ON COLUMN position.variant_token IS 'argmax of the variant';
COMMENT ON COLUMN position.is_flip IS 'the two argmax differ';
COMMENT ON COLUMN position.reference_margin IS 'top-1 minus runner-up of the reference, logits; null where not finite';
COMMENT ON COLUMN position.variant_margin IS 'top-1 minus runner-up of the variant, logits';
COMMENT ON COLUMN position.reference_margin_ulps IS 'the same, ULPs of the compute dtype';
COMMENT ON COLUMN position.variant_margin_ulps IS 'the same, ULPs of the compute dtype';
COMMENT ON COLUMN position.near_tie IS 'smaller margin at most twice max_abs: a flip is possible';
COMMENT ON COLUMN position.is_tie IS 'a margin of 0 on either side';
COMMENT ON COLUMN position.kl IS 'KL(reference || variant), nats; null where undefined';

CREATE TABLE ulp_histogram (pair INTEGER NOT NULL, distance BIGINT NOT NULL, elements BIGINT NOT NULL);
COMMENT ON TABLE ulp_histogram IS 'how many elements are how many ULPs apart';
COMMENT ON COLUMN ulp_histogram.pair IS 'index of the pair';
COMMENT ON COLUMN ulp_histogram.distance IS 'ULPs of the compute dtype';
COMMENT ON COLUMN ulp_histogram.elements IS 'number of elements finite on both sides';

CREATE TABLE ulp_tile (
    pair INTEGER NOT NULL, level INTEGER NOT NULL, first_row INTEGER NOT NULL, cells BLOB NOT NULL USING COMPRESSION uncompressed
);
COMMENT ON TABLE ulp_tile IS 'heatmap pyramid: largest ULP distance in cells of 4^level rows x 32 * 4^level tokens';
COMMENT ON COLUMN ulp_tile.pair IS 'index of the pair';
COMMENT ON COLUMN ulp_tile.level IS 'level of detail, 0 is the finest';
COMMENT ON COLUMN ulp_tile.first_row IS 'first row of the cells; rows count positions of all prompts, one after another';
COMMENT ON COLUMN ulp_tile.cells IS 'one cell for each group of tokens, ULPs, unsigned little-endian of the compute dtype''s width; all ones: NaN or infinity mismatch';

CREATE TABLE evidence (
    pair INTEGER NOT NULL, rung VARCHAR NOT NULL, control VARCHAR NOT NULL, figures VARCHAR NOT NULL, outcome VARCHAR NOT NULL,
    says VARCHAR NOT NULL
);
COMMENT ON TABLE evidence IS 'what supports a verdict: one row a control';
COMMENT ON COLUMN evidence.pair IS 'index of the pair';
COMMENT ON COLUMN evidence.rung IS 'rung of the ladder';
COMMENT ON COLUMN evidence.control IS 'what was run for it';
COMMENT ON COLUMN evidence.figures IS 'JSON object of its figures, each name with its unit';
COMMENT ON COLUMN evidence.outcome IS 'passed, failed, missing or noted';
COMMENT ON COLUMN evidence.says IS 'what that says, in a sentence';

CREATE TABLE floor_position (
    pair INTEGER NOT NULL, compute_dtype VARCHAR NOT NULL, prompt INTEGER NOT NULL, position INTEGER NOT NULL,
    pair_rms DOUBLE NOT NULL, floor_rms DOUBLE NOT NULL
);
COMMENT ON TABLE floor_position IS 'a judged pair beside the rounding floor, by position';
COMMENT ON COLUMN floor_position.pair IS 'index of the pair';
COMMENT ON COLUMN floor_position.compute_dtype IS 'dtype in which both were computed for the judgement';
COMMENT ON COLUMN floor_position.prompt IS 'index of the prompt';
COMMENT ON COLUMN floor_position.position IS '0-based token index in its prompt';
COMMENT ON COLUMN floor_position.pair_rms IS 'root mean square of variant minus reference, logits';
COMMENT ON COLUMN floor_position.floor_rms IS 'the same of reorderings of the reference, over all seeds, logits';

CREATE TABLE kv (
    pair INTEGER NOT NULL, prompt INTEGER NOT NULL, layer INTEGER NOT NULL, kind VARCHAR NOT NULL, head INTEGER NOT NULL,
    elements BIGINT NOT NULL, neq BIGINT NOT NULL, finite BIGINT NOT NULL, max_abs DOUBLE NOT NULL, rms DOUBLE NOT NULL,
    max_ulps BIGINT NOT NULL, mean_ulps DOUBLE NOT NULL, nonfinite_mismatch BIGINT NOT NULL, first_position INTEGER
);
COMMENT ON TABLE kv IS 'key/value caches of a pair after the whole prompt; no rows where a side keeps none';
COMMENT ON COLUMN kv.pair IS 'index of the pair';
COMMENT ON COLUMN kv.prompt IS 'index of the prompt';
COMMENT ON COLUMN kv.layer IS '0-based layer of the model';
COMMENT ON COLUMN kv.kind IS 'key or value';
COMMENT ON COLUMN kv.head IS '0-based key/value head';
COMMENT ON COLUMN kv.elements IS 'elements compared: positions that both caches hold x width of the head';
COMMENT ON COLUMN kv.neq IS 'elements whose values differ; +0 equals -0, NaN equals NaN';
COMMENT ON COLUMN kv.finite IS 'elements finite on both sides, over which distances are taken';
COMMENT ON COLUMN kv.max_abs IS 'largest absolute difference, unit of the cache, over elements finite on both sides';
COMMENT ON COLUMN kv.rms IS 'root mean square of the difference, unit of the cache';
COMMENT ON COLUMN kv.max_ulps IS 'largest distance, ULPs of the compute dtype';
COMMENT ON COLUMN kv.mean_ulps IS 'mean distance, ULPs of the compute dtype';
COMMENT ON COLUMN kv.nonfinite_mismatch IS 'elements where a NaN or infinity is not met by the same';
COMMENT ON COLUMN kv.first_position IS 'lowest position of the prompt where an element differs, null if none does';

CREATE TABLE kv_position (
    pair INTEGER NOT NULL, prompt INTEGER NOT NULL, layer INTEGER NOT NULL, kind VARCHAR NOT NULL, position INTEGER NOT NULL,
    neq BIGINT NOT NULL, rms DOUBLE NOT NULL, max_ulps BIGINT NOT NULL
);
COMMENT ON TABLE kv_position IS 'the same by position, all heads together';
COMMENT ON COLUMN kv_position.pair IS 'index of the pair';
COMMENT ON COLUMN kv_position.prompt IS 'index of the prompt';
COMMENT ON COLUMN kv_position.layer IS '0-based layer of the model';
COMMENT ON COLUMN kv_position.kind IS 'key or value';
COMMENT ON COLUMN kv_position.position IS '0-based token index in its prompt whose key or value it is';
COMMENT ON COLUMN kv_position.neq IS 'elements whose values differ';
COMMENT ON COLUMN kv_position.rms IS 'root mean square of the difference, unit of the cache';
COMMENT ON COLUMN kv_position.max_ulps IS 'largest distance, ULPs of the compute dtype';

CREATE TABLE layer (
    pair INTEGER NOT NULL, prompt INTEGER NOT NULL, ordinal INTEGER NOT NULL, module VARCHAR NOT NULL, kind VARCHAR NOT NULL,
    block INTEGER, dtype VARCHAR NOT NULL, positions INTEGER NOT NULL, elements BIGINT NOT NULL, neq BIGINT NOT NULL,
    finite BIGINT NOT NULL, max_abs DOUBLE NOT NULL, rms DOUBLE NOT NULL, max_ulps BIGINT NOT NULL, mean_ulps DOUBLE NOT NULL,
    nonfinite_mismatch BIGINT NOT NULL, first_position INTEGER, floor_rms DOUBLE
);
COMMENT ON TABLE layer IS 'outputs of the model''s modules on both sides of a pair at the positions looked at; no rows where a capture did not compare them';
COMMENT ON COLUMN layer.pair IS 'index of the pair';
COMMENT ON COLUMN layer.prompt IS 'index of the prompt';
COMMENT ON COLUMN layer.ordinal IS '0-based place in the order in which the modules run';
COMMENT ON COLUMN layer.module IS 'name of the module in the model; logits: what the model gives in the end, its head and all behind it';
COMMENT ON COLUMN layer.kind IS 'embedding, norm, projection (in attention), attention (its whole), mlp (whole or part), residual (the stream after a block), head or other';
COMMENT ON COLUMN layer.block IS '0-based block it belongs to, null outside the blocks';
COMMENT ON COLUMN layer.dtype IS 'dtype of the module''s output on both sides, in which ULPs are counted; float32 where the two differ';
COMMENT ON COLUMN layer.positions IS 'positions of the prompt that were looked at';
COMMENT ON COLUMN layer.elements IS 'elements compared: positions looked at x width of the output';
COMMENT ON COLUMN layer.neq IS 'elements whose values differ; +0 equals -0, NaN equals NaN';
COMMENT ON COLUMN layer.finite IS 'elements finite on both sides, over which distances are taken';
COMMENT ON COLUMN layer.max_abs IS 'largest absolute difference, unit of the output, over elements finite on both sides';
COMMENT ON COLUMN layer.rms IS 'root mean square of the difference, unit of the output';
COMMENT ON COLUMN layer.max_ulps IS 'largest distance, ULPs of dtype';
COMMENT ON COLUMN layer.mean_ulps IS 'mean distance, ULPs of dtype';
COMMENT ON COLUMN layer.nonfinite_mismatch IS 'elements where a NaN or infinity is not met by the same';
COMMENT ON COLUMN layer.first_position IS 'lowest position looked at where an element differs, null if none does';
COMMENT ON COLUMN layer.floor_rms IS 'the same rms of reordered prefills to a plain one, over all seeds, unit of the output; null where none was run';

CREATE TABLE layer_position (
    pair INTEGER NOT NULL, prompt INTEGER NOT NULL, ordinal INTEGER NOT NULL, position INTEGER NOT NULL, neq BIGINT NOT NULL,
    rms DOUBLE NOT NULL, max_ulps BIGINT NOT NULL, floor_rms DOUBLE
);
COMMENT ON TABLE layer_position IS 'the same by position';
COMMENT ON COLUMN layer_position.pair IS 'index of the pair';
COMMENT ON COLUMN layer_position.prompt IS 'index of the prompt';
COMMENT ON COLUMN layer_position.ordinal IS 'place of the module, as in layer';
COMMENT ON COLUMN layer_position.position IS '0-based token index in its prompt';
COMMENT ON COLUMN layer_position.neq IS 'elements whose values differ';
COMMENT ON COLUMN layer_position.rms IS 'root mean square of the difference, unit of the output';
COMMENT ON COLUMN layer_position.max_ulps IS 'largest distance, ULPs of layer.dtype';
COMMENT ON COLUMN layer_position.floor_rms IS 'the same rms of reordered prefills to a plain one, over all seeds; null where none was run';

CREATE TABLE generation (
    side INTEGER NOT NULL, prompt INTEGER NOT NULL, given_positions INTEGER NOT NULL, asked INTEGER NOT NULL, text VARCHAR NOT NULL
);
COMMENT ON TABLE generation IS 'prompts that every side continued greedily and freely; the prompt''s tokens beyond given_positions are the reference''s';
COMMENT ON COLUMN generation.side IS 'index of the side';
COMMENT ON COLUMN generation.prompt IS 'index of the prompt';
COMMENT ON COLUMN generation.given_positions IS 'positions that were given; the logits of the last of them chose the first generated token';
COMMENT ON COLUMN generation.asked IS 'tokens the side was asked for; fewer where it ended its text';
COMMENT ON COLUMN generation.text IS 'what it generated, as the tokenizer decodes it';

CREATE TABLE generated_token (side INTEGER NOT NULL, prompt INTEGER NOT NULL, step INTEGER NOT NULL, token_id INTEGER NOT NULL);
COMMENT ON TABLE generated_token IS 'what each side generated on its own, beyond the place where they part too';
COMMENT ON COLUMN generated_token.side IS 'index of the side';
COMMENT ON COLUMN generated_token.prompt IS 'index of the prompt';
COMMENT ON COLUMN generated_token.step IS '0-based; step 0 follows the given prompt';
COMMENT ON COLUMN generated_token.token_id IS 'argmax of the side''s own logits there, lowest id on ties';

CREATE TABLE op (
    probe INTEGER NOT NULL, op VARCHAR NOT NULL, backend VARCHAR NOT NULL, dtype VARCHAR NOT NULL, size VARCHAR NOT NULL,
    modules VARCHAR NOT NULL, elements BIGINT NOT NULL, rows_tried INTEGER NOT NULL, is_repeatable BOOLEAN, calls BIGINT,
    differing_calls BIGINT,
    worst_batch BIGINT, worst_call BIGINT, worst_neq BIGINT, worst_elements BIGINT, worst_max_ulps BIGINT,
    is_batch_invariant BOOLEAN, batch_classes VARCHAR NOT NULL, batch_neq BIGINT, batch_max_ulps BIGINT,
    is_position_invariant BOOLEAN, row_positions VARCHAR NOT NULL, relative_rms DOUBLE, seconds DOUBLE NOT NULL,
    note VARCHAR NOT NULL, refusal VARCHAR NOT NULL
);
COMMENT ON TABLE op IS 'torch operations probed on one machine, one row an operation, dtype and size; filled in runs of kind ops only';
COMMENT ON COLUMN op.probe IS '0-based number, in the order of probing';
COMMENT ON COLUMN op.op IS 'name of the operation';
COMMENT ON COLUMN op.backend IS 'backend of attention; empty for other operations';
COMMENT ON COLUMN op.dtype IS 'dtype of its inputs and result; ULPs are counted in it';
COMMENT ON COLUMN op.size IS 'size of one row of its inputs, and of what the rows share';
COMMENT ON COLUMN op.modules IS 'modules of run.model that have this size; empty otherwise';
COMMENT ON COLUMN op.elements IS 'elements of the result of one row';
COMMENT ON COLUMN op.rows_tried IS 'rows that were row 0 of batches of their own; the classes are over all of them';
COMMENT ON COLUMN op.is_repeatable IS 'every call gave the bits of the first at its batch size; null if not asked';
COMMENT ON COLUMN op.calls IS 'calls made, over all batch sizes';
COMMENT ON COLUMN op.differing_calls IS 'calls that gave other bits than the first at their batch size';
COMMENT ON COLUMN op.worst_batch IS 'batch size of the call with most differing elements; 0 where none differs';
COMMENT ON COLUMN op.worst_call IS 'its 0-based number at that batch size';
COMMENT ON COLUMN op.worst_neq IS 'its elements that differ from the first call';
COMMENT ON COLUMN op.worst_elements IS 'its elements in all';
COMMENT ON COLUMN op.worst_max_ulps IS 'its largest distance to the first call, ULPs of the dtype';
COMMENT ON COLUMN op.is_batch_invariant IS 'row 0 has the same bits at every batch size; null if not asked or without meaning (see note)';
COMMENT ON COLUMN op.batch_classes IS 'JSON: batch sizes of equal bits of row 0, first that of batch 1; digest of the bits, elements that differ from batch 1, largest distance in ULPs';
COMMENT ON COLUMN op.batch_neq IS 'most elements of the rows tried that differ from batch 1 in any class';
COMMENT ON COLUMN op.batch_max_ulps IS 'largest distance of row 0 to batch 1 in any class, ULPs of the dtype';
COMMENT ON COLUMN op.is_position_invariant IS 'one row at every index of a batch has the same bits; null if not asked';
COMMENT ON COLUMN op.row_positions IS 'JSON: for each batch size, the indices of a batch of one row''s copies in groups of equal bits';
COMMENT ON COLUMN op.relative_rms IS 'rms of row 0 alone minus a float64 computation of it, over the rms of the latter';
COMMENT ON COLUMN op.seconds IS 'wall time of the probe, seconds';
COMMENT ON COLUMN op.note IS 'why a question was not asked, or not at every batch size; empty otherwise';
COMMENT ON COLUMN op.refusal IS 'why the machine does not have the operation, one sentence; empty if it was measured';

CREATE TABLE kernel (
    side INTEGER NOT NULL, ordinal INTEGER NOT NULL, module VARCHAR NOT NULL, library VARCHAR NOT NULL, name VARCHAR NOT NULL,
    detail VARCHAR NOT NULL, launches BIGINT NOT NULL, microseconds DOUBLE NOT NULL
);
COMMENT ON TABLE kernel IS 'what each side launched for prompt 0, one row a kernel and module; no rows where it was not watched';
COMMENT ON COLUMN kernel.side IS 'index of the side';
COMMENT ON COLUMN kernel.ordinal IS '0-based, in the order in which they first ran';
COMMENT ON COLUMN kernel.module IS 'innermost module of the model that ran; empty for the model itself';
COMMENT ON COLUMN kernel.library IS 'torch: an operation; oneDNN, MKL: what these ran in it on a CPU; CUDA: a kernel on the device';
COMMENT ON COLUMN kernel.name IS 'the library''s name of the operation or kernel';
COMMENT ON COLUMN kernel.detail IS 'shapes and types as the library tells them; of a CUDA kernel the operation that launched it';
COMMENT ON COLUMN kernel.launches IS 'how often, over the forwards that were looked at';
COMMENT ON COLUMN kernel.microseconds IS 'its own time over these forwards while watched, microseconds';

CREATE TABLE kernel_side (side INTEGER NOT NULL, forwards INTEGER NOT NULL, forwards_of INTEGER NOT NULL);
COMMENT ON TABLE kernel_side IS 'sides whose kernels were watched';
COMMENT ON COLUMN kernel_side.side IS 'index of the side';
COMMENT ON COLUMN kernel_side.forwards IS 'forwards of the model that were looked at';
COMMENT ON COLUMN kernel_side.forwards_of IS 'forwards of the model there were';

CREATE TABLE remedy (
    pair INTEGER NOT NULL, ordinal INTEGER NOT NULL, name VARCHAR NOT NULL, what VARCHAR NOT NULL, compute_dtype VARCHAR NOT NULL,
    elements BIGINT, neq BIGINT, max_abs DOUBLE, rms DOUBLE, max_ulps BIGINT, flips INTEGER, noise_ratio DOUBLE,
    reference_tokens_per_second DOUBLE, variant_tokens_per_second DOUBLE, reference_share DOUBLE, variant_share DOUBLE,
    refusal VARCHAR NOT NULL, reference_share_low DOUBLE, reference_share_high DOUBLE, variant_share_low DOUBLE, variant_share_high DOUBLE,
    turns INTEGER
);
COMMENT ON TABLE remedy IS 'the same pair with one thing changed at a time; no rows where none were tried';
COMMENT ON COLUMN remedy.pair IS 'index of the pair';
COMMENT ON COLUMN remedy.ordinal IS '0-based; row 0 is the pair as it is';
COMMENT ON COLUMN remedy.name IS 'name of the remedy';
COMMENT ON COLUMN remedy.what IS 'what it changes, in a sentence';
COMMENT ON COLUMN remedy.compute_dtype IS 'dtype the logits were compared in';
COMMENT ON COLUMN remedy.elements IS 'logits compared: positions of all prompts x vocab; null where it was not measured, as all figures';
COMMENT ON COLUMN remedy.neq IS 'elements whose values differ';
COMMENT ON COLUMN remedy.max_abs IS 'largest absolute difference, logits; null, as rms, max_ulps and noise_ratio, where a NaN or infinity stands on one side only';
COMMENT ON COLUMN remedy.rms IS 'root mean square of the difference, logits';
COMMENT ON COLUMN remedy.max_ulps IS 'largest distance, ULPs of compute_dtype';
COMMENT ON COLUMN remedy.flips IS 'positions whose argmax differs';
COMMENT ON COLUMN remedy.noise_ratio IS 'rms over rms of the rounding floor of the reference as it is, in the run''s dtype; null where there is no floor';
COMMENT ON COLUMN remedy.reference_tokens_per_second IS 'tokens of the batch a second on the reference''s path with the remedy, from the median of the turns';
COMMENT ON COLUMN remedy.variant_tokens_per_second IS 'the same of the variant''s path';
COMMENT ON COLUMN remedy.reference_share IS 'reference_tokens_per_second over that of the pair''s row 0';
COMMENT ON COLUMN remedy.variant_share IS 'the same of the variant''s path';
COMMENT ON COLUMN remedy.refusal IS 'why it was not measured, in a sentence; empty if it was';
COMMENT ON COLUMN remedy.reference_share_low IS 'lower end of the 95 % interval (sign test) of the median of the turns'' own ratios; null where fewer than six were run';
COMMENT ON COLUMN remedy.reference_share_high IS 'its upper end';
COMMENT ON COLUMN remedy.variant_share_low IS 'the same of the variant''s path';
COMMENT ON COLUMN remedy.variant_share_high IS 'its upper end';
COMMENT ON COLUMN remedy.turns IS 'turns of the clock in which all remedies of the pair ran one after another; null where it was not timed';

CREATE TABLE price (
    ordinal INTEGER NOT NULL, path VARCHAR NOT NULL, batch INTEGER NOT NULL, tokens INTEGER NOT NULL,
    plain_tokens_per_second DOUBLE NOT NULL, tokens_per_second DOUBLE NOT NULL, share DOUBLE NOT NULL,
    share_low DOUBLE, share_high DOUBLE, turns INTEGER
);
COMMENT ON TABLE price IS 'throughput of the run''s paths with every sum in one order, by batch size; no rows where it was not measured';
COMMENT ON COLUMN price.ordinal IS '0-based';
COMMENT ON COLUMN price.path IS 'path, without the modifiers of its batch';
COMMENT ON COLUMN price.batch IS 'sequences in the batch';
COMMENT ON COLUMN price.tokens IS 'tokens of all rows together, in one turn';
COMMENT ON COLUMN price.plain_tokens_per_second IS 'tokens of the batch a second on the path as it is, from the median of the turns';
COMMENT ON COLUMN price.tokens_per_second IS 'the same with +invariant';
COMMENT ON COLUMN price.share IS 'the latter over the former';
COMMENT ON COLUMN price.share_low IS 'lower end of the 95 % interval (sign test) of the median of the turns'' own ratios; null where fewer than six were run';
COMMENT ON COLUMN price.share_high IS 'its upper end';
COMMENT ON COLUMN price.turns IS 'turns of the clock in which both ran';
