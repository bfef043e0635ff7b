"""`ingest` and `inspect`: logit dumps, server responses and run files."""

import json
import sys
from select import select

from typer import Argument, Context, Exit, Option

from ..errors import UsageError
from ..judging.ingest import describe
from ..judging.ingest import ingest as ingest_dump
from ..numerics.divergence import COMPILING, is_compiled, prepare
from ..numerics.formats import BFLOAT16, FLOAT32
from ..rl.formats import are_tokens, files_in
from ..runs.importing import import_run, is_run_file
from ..runs.store.store import open_store
from .options import (
    ComputeDtypeOption,
    ExactOption,
    HoldsOption,
    JsonOption,
    MixtureOfExpertsOption,
    ProgressOption,
    ReferenceOption,
    StoreOption,
)
from .terminal.console import (
    announce,
    print_facts,
    print_json,
    print_line,
    print_note,
    print_records,
    steps,
)
from .terminal.stopping import stoppable

_FILES = (
    "One or two dumps, responses (JSON, JSONL), files or folders of trainer vs. rollout, or a run"
    " file."
)


def ingest(
    names: list[str] = Argument(..., metavar="FILES...", help=_FILES),
    name: str | None = Option(None, help="Name of the run. Default: the file's name."),
    model: str = Option("", help="Model that the logits come from, for the record."),
    compute_dtype: ComputeDtypeOption = None,
    reference: ReferenceOption = None,
    holds: HoldsOption = None,
    exact: ExactOption = None,
    mixture_of_experts: MixtureOfExpertsOption = False,
    tokenizer: str | None = Option(
        None,
        metavar="DIR",
        help="Trainer vs. rollout: folder with the tokenizer, for the texts of the tokens.",
    ),
    run_id: str | None = Option(None, hidden=True, help="Id of the run."),
    progress: ProgressOption = "bar",
    store: StoreOption = None,
    as_json_: JsonOption = False,
) -> None:
    """Import a logit dump, server responses or a run file as a run.

    A dump is stored bit for bit. Of a run file, the schema and the digests of its logits are
    checked; no code in it is executed (docs/guides/upload.md).
    """
    target, files = open_store(store), files_in(names)
    texts_of = None
    if tokenizer:
        if not are_tokens(files):
            raise UsageError("--tokenizer is for files of trainer vs. rollout.")
        # loads transformers
        from ..inference.models.model import texts_by

        texts_of = texts_by(tokenizer)
    taken_as = {
        "compute_dtype": compute_dtype,
        "reference": reference,
        "holds": holds,
        "exact": exact,
        "has_experts": mixture_of_experts,
    }
    with stoppable(), steps(progress) as say:
        if is_run_file(files[0]):
            if len(files) > 1 or model or any(taken_as.values()):
                raise UsageError("A run file is imported alone; --name is its only option.")
            new_id = import_run(
                target,
                files[0],
                name=name,
                run_id=run_id,
                on_progress=say,
            )
        else:
            new_id = ingest_dump(
                target,
                files,
                name=name,
                model=model,
                run_id=run_id,
                on_progress=say,
                texts_of=texts_of,
                **taken_as,
            )
    announce(new_id, store, progress, as_json_)


_SPARE_SECONDS = 600  # it takes 200 MB while it waits


def spare(context: Context) -> None:
    """Load what `ingest` needs, read one line of JSON, `{"arguments": [...]}`, and run that
    command.
    """
    for fmt in (FLOAT32, BFLOAT16):
        # a page shows this stage: the first comparison of a dtype takes 10 to 15 s longer
        if not is_compiled(fmt):
            print_line(stage=COMPILING)
        prepare(fmt)
        # on a busy machine the other dtype may take minutes, and this file may not need it
        if select([sys.stdin], [], [], 0)[0]:
            break
    import pandas  # noqa: F401
    import pyarrow  # noqa: F401

    # only waiting has a limit: on a busy machine to compile may take longer
    if not select([sys.stdin], [], [], _SPARE_SECONDS)[0]:
        return
    # imports and kernels are most of the time that saving a small file takes, and are there by now
    if line := sys.stdin.readline():
        code = context.find_root().command.main(
            json.loads(line)["arguments"],
            standalone_mode=False,
        )
        raise Exit(code or 0)


def inspect(
    names: list[str] = Argument(..., metavar="FILES...", help=_FILES),
    compute_dtype: ComputeDtypeOption = None,
    reference: ReferenceOption = None,
    holds: HoldsOption = None,
    as_json_: JsonOption = False,
) -> None:
    """Show what a dump, responses or a run file contains: sides, dtypes, shapes, tokens.

    Nothing is stored.
    """
    with steps() as say:
        summary = describe(
            files_in(names),
            on_progress=say,
            compute_dtype=compute_dtype,
            reference=reference,
            holds=holds,
        )
    if as_json_:
        print_json(summary)
        return
    print_records(summary["sides"])
    print_facts({key: value for key, value in summary.items() if key not in ("sides", "warnings")})
    for warning in summary.get("warnings", ()):
        print_note(warning)
