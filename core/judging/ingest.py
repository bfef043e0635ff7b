"""Store dumps and responses as analyzed, judged runs, one pass over the file, memory bounded by its
chunks; or describe a file before it is stored.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from ..checks.responses import CONTEXT, GRID, PLACEHOLDERS, SentFigures
from ..command_name import UNSTORED
from ..errors import DumpError, StoreError, UsageError
from ..numerics.constant_rows import Filling
from ..progress import STORING, Progress, no_progress
from ..responses.alignment import align
from ..responses.files import are_payloads, read_sides
from ..responses.pairing import pairs_of
from ..rl.formats import are_tokens
from ..rl.writing import FORMAT, TextsOf, write_tokens
from ..runs.dumps.containers import open_container
from ..runs.dumps.dump import Dump, open_dump
from ..runs.dumps.reserved_keys import sides_of
from ..runs.dumps.shapes import VALUES
from ..runs.file.records import MAX_SIDES, Provenance
from ..runs.importing import check_schema, is_run_file
from ..runs.reader import RunReader
from ..runs.response_run import write_responses
from ..runs.store.cards import read_runs
from ..runs.store.store import Store
from ..runs.writer import RunWriter
from ..text import clean, plural
from .lists import judge_responses, judge_tokens
from .uploaded_controls import judge_dump

WHOLE_ROWS_ONLY = (
    "compute dtype, reference, holds, exact and mixture of experts are for whole rows of logits,"
    " not for server responses."
)
# characters of what a run file says of itself: a text there may be as long as it likes
_LONGEST_NAME = 200


def ingest(
    store: Store,
    paths: Sequence[Path],
    *,
    name: str | None = None,
    model: str = "",
    run_id: str | None = None,
    on_progress: Progress = no_progress,
    texts_of: TextsOf | None = None,
    **taken_as: Any,
) -> str:
    """Check dump files, or responses of engines, and store them as one run; return its id.

    texts_of: texts of token ids, by id, for files of trainer vs. rollout; taken_as: compute_dtype,
    reference, holds, exact and has_experts of open_dump. DumpError if they cannot be taken,
    LimitError if there is no room for them: nothing is left in the store then.
    """
    parts = [path.stem for path in paths]
    if len(parts) > 2:
        parts = [parts[0], f"{len(paths) - 1:,} more"]
    title = name or " + ".join(filter(None, parts))
    is_tokens = are_tokens(paths)
    if not is_tokens and not are_payloads(paths):
        with open_dump(paths, **taken_as) as dump:
            return store_dump(store, dump, title, model, run_id, on_progress)
    if any(taken_as.values()):
        raise UsageError(WHOLE_ROWS_ONLY)
    if is_tokens:
        return write_tokens(
            store,
            paths,
            title,
            Provenance("upload", model),
            judge_tokens,
            run_id=run_id,
            on_progress=on_progress,
            texts_of=texts_of,
        )
    sides = align(read_sides(paths))
    pairs = pairs_of(sides)
    responses = [response for side in sides for response in side.responses]
    models = {model} if model else {response.model for response in responses if response.model}
    rows = sum(len(each.rows) for each in sides)
    on_progress(STORING, rows, rows)
    return write_responses(
        store,
        title,
        Provenance("upload", models.pop() if len(models) == 1 else ""),
        sides,
        pairs,
        judge_responses(sides, pairs),
        run_id=run_id,
    )


def store_dump(
    store: Store,
    dump: Dump,
    name: str,
    model: str,
    run_id: str | None,
    on_progress: Progress,
) -> str:
    """Store an opened dump as a run, with its verdict without controls; return its id."""
    header = dump.header(name, model)
    fillings = [Filling(header.format) for _ in header.sides]
    with RunWriter(store, header, run_id=run_id) as writer:
        for row, sides in dump.chunks():
            for index, bits in enumerate(sides):
                writer.write(index, row, bits)
                fillings[index].see(bits)
            on_progress(STORING, row + len(sides[0]), dump.rows)
        for generation in dump.generations:
            writer.write_generation(generation)
        for verdict in judge_dump(dump, writer.figures(), fillings):
            writer.write_verdict(verdict)
        return writer.finish()


@contextmanager
def temporary_run(paths: Sequence[Path], **options: Any) -> Iterator[RunReader]:
    """Yield the run that `ingest` makes of files, in a store that is gone afterwards; its sentences
    call it RUN.
    """
    with temporary_run_by(lambda store: ingest(store, paths, run_id=UNSTORED, **options)) as run:
        yield run


@contextmanager
def temporary_run_by(store_run: Callable[[Store], str]) -> Iterator[RunReader]:
    """Yield a run in a store that is gone afterwards. store_run: stores it and returns its id."""
    with tempfile.TemporaryDirectory(prefix="ulpscope-") as folder:
        store = Store(Path(folder))
        with RunReader(store.path_of(store_run(store))) as run:
            yield run


def headers_of(path: Path) -> tuple[Literal["run", "dump", "array", "responses"], dict[str, str]]:
    """Return what a file is by its first bytes and headers, and of arrays the dtype and shape of
    each side by its name; DumpError for anything else.
    """
    if is_run_file(path):
        return "run", {}
    if are_payloads([path]) or are_tokens([path]):
        return "responses", {}
    container = open_container(path)
    sides, _ = sides_of(container)
    if not 1 <= len(sides) <= MAX_SIDES:
        problem = f"holds {plural(len(sides), 'array')} of logits"
        raise DumpError(
            f"{container.name}: {problem}; expected 1 to {MAX_SIDES} of [positions, vocab].",
        )
    shapes = {
        name: f"{'bfloat16' if array.dtype.kind == 'V' else array.dtype.name} {list(array.shape)}"
        for name, array in sides.items()
    }
    return "array" if len(sides) == 1 else "dump", shapes


def describe(
    paths: Sequence[Path],
    *,
    on_progress: Progress = no_progress,
    **taken_as: Any,
) -> dict[str, Any]:
    """Describe the run that `paths` would make, as JSON has it: one file, or two of one array each.

    taken_as: compute_dtype, reference and holds of open_dump. DumpError or StoreError if it cannot
    be taken.
    """
    facts = {"files": [clean(path.name) for path in paths]}
    if any(is_run_file(path) for path in paths):
        if len(paths) != 1:
            raise UsageError("a run file stands for itself; give it alone.")
        return facts | _run(paths[0])
    if are_tokens(paths) or are_payloads(paths):
        return facts | _responses(paths, **taken_as)
    with open_dump(paths, on_progress=on_progress, **taken_as) as dump:
        tokens = "ids" if dump.prompts[0].token_ids else "none"
        if dump.prompts[0].token_texts:
            tokens = "ids and texts"
        return facts | {
            "kind": "dump",
            "sides": [
                {"name": side.name, "source_dtype": side.source_dtype} for side in dump.sides
            ],
            "prompts": len(dump.prompts),
            "positions": dump.rows,
            "vocab": dump.vocab,
            "compute_dtype": dump.compute_dtype,
            "dtype_reason": dump.dtype_reason,
            "tokens": tokens,
            **({} if dump.has_tokens else {"holds": VALUES}),
            "emitted": len(dump.generations),
            "exact": clean(dump.exact.name) if dump.exact else "",
            "meta": dump.meta,
            "warnings": list(dump.warnings),
            "logits_bytes": dump.nbytes,
        }


def _responses(paths: Sequence[Path], **taken_as: Any) -> dict[str, Any]:
    """Describe responses by the run that they make."""
    sides = []
    with temporary_run(paths, **taken_as) as run:
        facts = _run(run.path)
        for side in run.sides:
            responses = run.rows("response", side=side.index)
            values = f"{side.holds}s of at most {plural(side.k or 1, 'token')} per position"
            formats = sorted(set(responses["format"])) or [FORMAT]
            sides.append({"name": side.name, "source_dtype": values, "formats": formats})
        keys = set(run.rows("side", side=0)["keys"])
        note = run.header.provenance.note
        rows = [row for pair in run.pairs for row in run.evidence(pair.index)]
    grids = [f"{row.side}: {row.says}" for row in rows if row.check == GRID]
    warnings = [row.says for row in rows if row.check in (PLACEHOLDERS, CONTEXT)]
    if note:
        warnings.append(note)
    counts = [row.figures.positions for row in rows if isinstance(row.figures, SentFigures)]
    return facts | {
        "kind": "responses",
        "sides": sides,
        "positions": max(counts, default=facts["positions"]),
        "dtype_reason": " ".join(dict.fromkeys(grids)),
        "tokens": "ids" if "token_id" in keys else "texts",
        "warnings": list(dict.fromkeys(warnings)),
    }


def _run(path: Path) -> dict[str, Any]:
    """Describe a run file by what it says of itself; StoreError if it is none."""
    check_schema(path)
    card = read_runs([path])[path]
    if isinstance(card, StoreError):
        raise card
    return {
        "kind": "run",
        "name": clean(card.name, _LONGEST_NAME),
        "model": clean(card.model, _LONGEST_NAME),
        "created": card.created.isoformat(),
        "sides": [
            {"name": clean(name, _LONGEST_NAME), "source_dtype": card.compute_dtype}
            for name in card.sides
        ],
        **{
            name: getattr(card, name) for name in ("prompts", "positions", "vocab", "compute_dtype")
        },
        "verdicts": list(card.pair_verdicts),
    }
