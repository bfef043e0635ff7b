"""`throughput`: tokens a second of two or more paths by batch size."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from ..errors import UsageError
from ..runs.tables.remedies import Kept
from .request_options import DeviceOption, DtypeOption, RevisionOption, TrustOption, request_argument
from .terminal.console import JsonOption, out, print_json, steps, stoppable

if TYPE_CHECKING:  # torch is for those who run a model
    from ..inference.capture.throughput import Throughput


def throughput(
    model: Annotated[str, request_argument("model")],
    paths: Annotated[list[str], typer.Argument(help="Paths, of which the first is what the others are held against.")],
    batch: Annotated[str, typer.Option(help="Batch sizes, with commas between.")] = "1,2,4,8",
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of each prompt.")] = 32,
    rounds: Annotated[
        int | None,
        typer.Option(
            min=1, help="Turns that count. Default: six, and more until the shares are narrow, at most twenty."
        ),
    ] = None,
    dtype: DtypeOption = "bfloat16",
    device: DeviceOption = None,
    revision: RevisionOption = None,
    trust_remote_code: TrustOption = False,
    as_json_: JsonOption = False,
) -> None:
    """Measure what a path costs: tokens a second by batch size, the paths taking turns; a share with the interval that
    it lies in.

    For example:  ulpscope throughput sample_runs/model decode decode+invariant --batch 1,2,4,8,16
    """
    batches = _batches(batch)
    with stoppable(), steps() as say:
        say("loading the model")
        from ..inference.capture.throughput import throughput as measured
        from ..inference.models.model import load_model

        loaded = load_model(model, dtype=dtype, device=device, revision=revision, trust_remote_code=trust_remote_code)
        found = measured(loaded, paths, batches, tokens=tokens, rounds=rounds, on_progress=say)
    if as_json_:
        header = {"model": loaded.name, "dtype": loaded.dtype, "device": loaded.device_name, "prompt_tokens": tokens}
        print_json({**header, "throughput": [asdict(one) for one in found]})
    else:
        out.print(_table(found))


def _batches(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and 0 < int(part) < 1 << 20 for part in parts):
        raise UsageError(f"--batch '{text}' is no list of batch sizes; write 1,2,4,8.")
    return list(dict.fromkeys(map(int, parts)))


def _table(found: list[Throughput]) -> Table:
    paths = list(dict.fromkeys(one.path for one in found))
    table = Table()
    table.add_column("batch", justify="right")
    for number, path in enumerate(paths):
        table.add_column(f"{path}, tokens/s", justify="right")
        if number:
            table.add_column("share", justify="right")
    for batch in dict.fromkeys(one.batch for one in found):
        cells = []
        for number, one in enumerate(one for one in found if one.batch == batch):
            cells += [
                f"{one.tokens_per_second:,.0f}",
                *([Kept(one.share, one.share_low, one.share_high).in_words()] if number else []),
            ]
        table.add_row(str(batch), *cells)
    return table
