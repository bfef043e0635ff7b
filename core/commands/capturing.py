"""`capture`: a model down several paths, every logit of each into a run."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from ..command_name import COMMAND
from ..errors import CaptureError, UsageError
from ..prompt_files import GivenPrompt, Message, read_prompts, read_whole
from ..runs.store.partial import is_passing
from ..runs.store.store import open_store
from ..runs.writer import RunWriter
from .capture_extras import KernelsOption, RemediesOption, judge_pairs, session_of, try_remedies, watch_kernels
from .console import (
    JsonOption,
    ProgressOption,
    StoreOption,
    arguments_without,
    check_progress,
    out,
    print_json,
    size,
    steps,
    stoppable,
)
from .ending import tell_end

if TYPE_CHECKING:  # torch is for those who run a model
    from ..inference.capture.capture import CapturePlan
    from ..inference.capture.extra_costs import StageCost
    from ..inference.models.model import LoadedModel

LAYER_FLOOR = 2  # core.inference.watching.layers.FLOOR_SEEDS, which would load torch

ModelOption = Annotated[str, typer.Option(help="Folder or hub id of a transformers causal language model.")]
PromptOption = Annotated[list[str] | None, typer.Option(help="A prompt; may be given several times.")]
PromptFileOption = Annotated[
    list[Path] | None, typer.Option(help="A text file that is one prompt; may be given several times.")
]
PromptsOption = Annotated[
    list[Path] | None,
    typer.Option(
        help=(
            "A file of many prompts: .jsonl with 'prompt', 'text', 'token_ids' or 'messages' in each line, else one a"
            " line."
        )
    ),
]
ChatOption = Annotated[
    bool,
    typer.Option("--chat", help="Each prompt's text is a user's message: put it into the tokenizer's chat template."),
]
SystemOption = Annotated[str | None, typer.Option(help="What the system message of every chat says.")]
ReferenceOption = Annotated[str, typer.Option(help="Path of the reference: prefill, decode, prefill+batch:8, ...")]
VariantOption = Annotated[list[str] | None, typer.Option(help="Path of a variant; may be given several times.")]
SweepOption = Annotated[
    list[str] | None,
    typer.Option(help="Add a variant for each value: batch=1,2,3,4,8 puts the reference into batches of each size."),
]
KvOption = Annotated[
    bool | None, typer.Option("--kv/--no-kv", help="Compare the key/value caches too. Default: where a path reads one.")
]
LayersOption = Annotated[
    bool,
    typer.Option(
        "--layers",
        help="Compare what every module of the model puts out too: where it first differs, and how it grows.",
    ),
]
LayerFloorOption = Annotated[
    int, typer.Option(help="With --layers: how many reordered forwards give each module's rounding floor; 0 for none.")
]
LayerPositionOption = Annotated[
    list[int] | None,
    typer.Option(
        help=(
            "With --layers: look at this position of each prompt, where not all fit on disk; may be given several"
            " times."
        )
    ),
]
DtypeOption = Annotated[str, typer.Option(help="float32, float16 or bfloat16.")]
DeviceOption = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1. Default: CUDA if there is one.")]
RevisionOption = Annotated[str | None, typer.Option(help="Revision on the hub.")]
TrustOption = Annotated[bool, typer.Option(help="Let the model's repository run its own code.")]
NameOption = Annotated[str | None, typer.Option(help="What to call the run.")]
SeedOption = Annotated[int, typer.Option(help="Seed set before each side.")]
KeepOption = Annotated[
    bool,
    typer.Option("--keep-finished", help="Where a later side fails, keep the run of those before it (two at least)."),
]
JudgeOption = Annotated[
    bool,
    typer.Option(
        "--judge", help="Also run the controls that tell rounding from a bug: several times the work of the capture."
    ),
]
DryRunOption = Annotated[
    bool,
    typer.Option("--dry-run", help="Check everything and say what would run and what it costs; no weights are read."),
]


def capture(
    model: ModelOption,
    prompt: PromptOption = None,
    prompt_file: PromptFileOption = None,
    prompts: PromptsOption = None,
    chat: ChatOption = False,
    system: SystemOption = None,
    reference: ReferenceOption = "prefill",
    variant: VariantOption = None,
    sweep: SweepOption = None,
    repeat: Annotated[
        int, typer.Option(help="Call every path N times, one after another, as a server would be called.")
    ] = 1,
    kv: KvOption = None,
    layers: LayersOption = False,
    layer_floor: LayerFloorOption = LAYER_FLOOR,
    layer_position: LayerPositionOption = None,
    kernels: KernelsOption = False,
    remedies: RemediesOption = False,
    dtype: DtypeOption = "bfloat16",
    device: DeviceOption = None,
    revision: RevisionOption = None,
    trust_remote_code: TrustOption = False,
    name: NameOption = None,
    seed: SeedOption = 0,
    judge: JudgeOption = False,
    keep_finished: KeepOption = False,
    dry_run: DryRunOption = False,
    progress: ProgressOption = "bar",
    store: StoreOption = None,
    as_json_: JsonOption = False,
) -> None:
    """Run a model down two or more paths that are equal in exact arithmetic, and keep every logit of each.

    For example:  python -m core capture --model sample_runs/model --prompt-file sample_runs/prompts/parser.txt
    --reference prefill --variant decode --variant prefill+batch:8 --dtype bfloat16

    The first call against later ones, with block reuse:  --reference blocks:16 --repeat 6

    Which batch sizes agree bit for bit:  --reference decode --sweep batch=1,2,3,4,8,16

    What that would cost:  --dry-run. docs/paths.md lists every path.
    """
    asked = Asked(
        prompt,
        prompt_file,
        prompts,
        chat,
        system,
        reference,
        variant,
        sweep,
        repeat,
        kv,
        name,
        seed,
        layers,
        layer_floor,
        tuple(layer_position or ()),
        kernels,
        remedies,
    )
    if dry_run:
        with stoppable():
            beside = [
                name for name, is_asked in (("kernels", kernels), ("remedies", remedies), ("judge", judge)) if is_asked
            ]
            print_costs(asked.plan(model, dtype, device, revision, trust_remote_code, weights=False), as_json_, beside)
        return
    run_id, failure = captured(
        asked,
        model=model,
        dtype=dtype,
        device=device,
        revision=revision,
        trust_remote_code=trust_remote_code,
        judge=judge,
        keep_finished=keep_finished,
        progress=progress,
        store=store,
    )
    tell_end(run_id, failure, progress, as_json_, store)


@dataclass(frozen=True)
class Asked:
    """What a capture is asked for, as the options give it."""

    prompt: list[str] | None
    prompt_file: list[Path] | None
    prompts: list[Path] | None
    chat: bool
    system: str | None
    reference: str
    variant: list[str] | None
    sweep: list[str] | None
    repeat: int
    kv: bool | None
    name: str | None
    seed: int
    layers: bool = False
    layer_floor: int = LAYER_FLOOR
    layer_positions: tuple[int, ...] = ()
    kernels: bool = False
    remedies: bool = False

    def given(self) -> list[GivenPrompt]:
        return given_prompts(self.prompt, self.prompt_file, self.prompts, self.chat, self.system)

    def plan(
        self,
        model: str,
        dtype: str,
        device: str | None,
        revision: str | None,
        trust_remote_code: bool,
        *,
        weights: bool = True,
    ) -> CapturePlan:
        """Everything checked, the model loaded; without `weights` only its shapes."""
        given = self.given()
        from ..inference.capture.capture import plan_capture
        from ..inference.models.model import load_model

        variants = variants_of(self.reference, self.variant, self.sweep, default=None if self.repeat > 1 else "decode")
        loaded = load_model(
            model, dtype=dtype, device=device, revision=revision, trust_remote_code=trust_remote_code, weights=weights
        )
        return plan_capture(
            loaded,
            as_tokens(loaded, given, self.chat, self.system),
            self.reference,
            variants,
            name=self.name,
            command=typed_command(),
            seed=self.seed,
            repeat=self.repeat,
            kv=self.kv,
            layers=self.layers,
            layer_floor=self.layer_floor,
            layer_positions=self.layer_positions,
        )


def captured(
    asked: Asked,
    *,
    model: str,
    dtype: str,
    device: str | None,
    revision: str | None,
    trust_remote_code: bool,
    judge: bool,
    keep_finished: bool,
    progress: str,
    store: Path | None,
) -> tuple[str, list[str]]:
    """Capture, and judge if that is asked for. -> (run id, sentences on what is less than was asked for)"""
    check_progress(progress)
    asked.given()  # refused before anything slow is begun
    target = open_store(store)
    with stoppable(), steps(progress) as say:
        say("loading the model")
        from ..inference.capture.capture import run_capture

        plan = asked.plan(model, dtype, device, revision, trust_remote_code)
        with RunWriter(target, plan.header) as writer:
            with keeping(writer, keep_finished) as failure:
                found = run_capture(plan, writer, lambda step: say(step.side_name, step.rows_done, step.rows_total))
                failure += found
            session = session_of(plan)
            if asked.kernels:
                failure += watch_kernels(plan, writer, say)
            if asked.remedies:
                failure += try_remedies(plan, writer, say, session)
            if judge:
                failure += judge_pairs(plan, writer, say, session)
            say("writing the run file", 0, 0)
            return writer.finish(only_finished=keep_finished, note=" ".join(failure)), failure


def typed_command() -> str:
    """The command line that repeats this one: how it reports and where it stores are no part of that.

    Of a file that is there for this command only (dropped on a page) the name stays, which is its owner's own.
    """
    given = [part for part in arguments_without(sys.argv[1:], "--progress", "--store") if part != "--json"]
    given = [
        Path(part).name if before == "--prompts" and is_passing(part) else part
        for before, part in pairwise(["", *given])
    ]
    return f"{COMMAND} {shlex.join(given)}"


def variants_of(
    reference: str, variant: list[str] | None, sweep: list[str] | None, *, default: str | None
) -> list[str]:
    """The variants that were asked for, those of every sweep included; `default` where there are none."""
    from ..inference.paths.paths import parse_path
    from ..inference.paths.sides import sweep as swept

    swept_paths = [path for text in sweep or [] for path in swept(reference, text)]
    own = str(parse_path(reference))
    found = [
        *(variant or []),
        *(path for path in swept_paths if path != own),
    ]  # the reference may be a value of its own sweep
    if not found and default:
        found = ["prefill" if own == default else default]
    return found


def given_prompts(
    texts: list[str] | None, whole_files: list[Path] | None, files: list[Path] | None, chat: bool, system: str | None
) -> list[GivenPrompt]:
    """Every prompt that the options name, in that order; UsageError before anything slow is begun."""
    found = [GivenPrompt(f"prompt {number}", text=text) for number, text in enumerate(texts or [], start=1)]
    found += [read_whole(path) for path in whole_files or []]
    found += [prompt for path in files or [] for prompt in read_prompts(path)]
    if not found:
        raise UsageError("no prompt was given; use --prompt TEXT, --prompt-file FILE or --prompts FILE.")
    chats = [prompt for prompt in found if prompt.messages is not None or (chat and prompt.text is not None)]
    if system is not None and not chats:
        raise UsageError("--system is part of a chat; add --chat, or leave it out.")
    if chat and not chats:
        raise UsageError("--chat is for texts, and every prompt is given as token ids; leave it out.")
    for prompt in chats:
        if system is not None and prompt.messages is not None and any(m.role == "system" for m in prompt.messages):
            raise UsageError(f"{prompt.where}: has a system message of its own; leave --system out.")
    return found


def as_tokens(
    loaded: LoadedModel, given: Sequence[GivenPrompt], chat: bool, system: str | None
) -> list[str | Sequence[int]]:
    """What a plan takes: chats as token ids, texts as they are (the tokenizer adds its special tokens), token ids as
    they are.
    """
    from ..inference.models.chat import chat_tokens

    found: list[str | Sequence[int]] = []
    for prompt in given:
        messages = prompt.messages
        if messages is None and chat and prompt.text is not None:
            if not prompt.text:
                raise UsageError(f"{prompt.where}: is empty; expected at least one character.")
            messages = (Message("user", prompt.text),)
        if messages is not None:
            opening = (Message("system", system),) if system is not None else ()
            found.append(chat_tokens(loaded, [asdict(message) for message in (*opening, *messages)], prompt.where))
        elif prompt.token_ids is not None:
            found.append(prompt.token_ids)
        else:
            found.append(prompt.text or "")
    return found


@contextmanager
def keeping(writer: RunWriter, keep_finished: bool) -> Iterator[list[str]]:
    """Gives a list that holds one sentence afterwards if a side failed and those before it are to be kept; else the
    failure passes.
    """
    failure: list[str] = []
    try:
        yield failure
    except CaptureError as error:
        finished = writer.finished_sides
        if not keep_finished or len(finished) < 2:
            raise
        asked = [side.name for side in writer.header.sides]
        failed = ", ".join(f"'{side}'" for side in asked[len(finished) :])
        failure.append(
            f"{error} The run was kept without {failed}: {len(finished)} of {len(asked)} sides had finished."
        )


def print_costs(plan: CapturePlan, as_json_: bool, beside: Sequence[str] = ()) -> None:
    """What a plan would compute and keep, on what, and about how long that takes; beside: of
    core.inference.capture.extra_costs.BESIDE.
    """
    from ..inference.capture.costs import costs_of
    from ..inference.capture.extra_costs import WITHIN, seconds_of, speed_here, stages_of
    from ..inference.models.model import devices_here

    costs, loaded = costs_of(plan), plan.loaded
    stages = stages_of(plan, beside)
    seconds = seconds_of(loaded, costs, stages, speed_here(loaded))
    if as_json_:
        devices = [{"device": name, "device_name": chip, "free_bytes": free} for name, chip, free in devices_here()]
        about: dict[str, Any] = {
            "model": loaded.name,
            "dtype": loaded.dtype,
            "device": loaded.device,
            "device_name": loaded.device_name,
            "name": plan.header.name,
            "devices": devices,
        }
        print_json(
            {
                **about,
                **asdict(costs),
                "forwards": costs.forwards,
                "tokens": costs.tokens,
                **_as_json(stages, seconds, WITHIN),
            }
        )
        return
    table = Table(
        title=f"{escape(plan.header.name)}, in {loaded.dtype} on {loaded.device} ({escape(loaded.device_name)})"
    )
    for column in ("side", "path", "forwards", "positions", "tokens computed", "key/value cache"):
        table.add_column(column, justify="left" if column in ("side", "path") else "right", overflow="fold")
    for side in costs.sides:
        cache = "unknown" if side.kv_bytes is None else size(side.kv_bytes) if side.kv_bytes else "none"
        table.add_row(
            escape(side.name), escape(side.path), f"{side.forwards:,}", f"{side.positions:,}", f"{side.tokens:,}", cache
        )
    out.print(table)
    free = "an unknown amount" if costs.free_bytes is None else size(costs.free_bytes)
    for line in (
        (
            f"{costs.prompts} {'prompt' if costs.prompts == 1 else 'prompts'}, {costs.positions:,} positions; "
            f"{costs.forwards:,} forwards of {costs.tokens:,} tokens in all."
        ),
        (
            f"The run file takes {size(costs.logits_bytes)}, the weights {size(costs.weight_bytes)}; "
            f"beside them {loaded.device} has {free} free."
        ),
        "Caches are compared too." if costs.has_kv else "Caches are not compared.",
        *layer_costs(plan),
        *beside_in_words(stages, seconds, WITHIN),
    ):
        out.print(line, markup=False)


def beside_in_words(stages: Sequence[StageCost], seconds: tuple[float, float], within: int) -> list[str]:
    """A sentence on everything that is run beside the sides, and one on how long all of it takes."""
    said = [f"Beside the sides, {stage.name}: {_work_in_words(stage)}." for stage in stages]
    took = _between(*(duration(end) for end in seconds))
    return [
        *said,
        f"All of it takes about {took} on this machine as busy as it is now, to within a factor of {within}.",
    ]


def _as_json(stages: Sequence[StageCost], seconds: tuple[float, float], within: int) -> dict[str, Any]:
    return {
        "beside": [asdict(stage) for stage in stages],
        "seconds": {"least": round(seconds[0], 1), "most": round(seconds[1], 1), "within_a_factor_of": within},
        "in_words": beside_in_words(stages, seconds, within),
    }


def _work_in_words(stage: StageCost) -> str:
    least, most = stage.least, stage.most
    return (
        f"{_between(f'{least.forwards:,}', f'{most.forwards:,}')} forwards of"
        f" {_between(f'{least.tokens:,}', f'{most.tokens:,}')} tokens"
    )


def _between(least: str, most: str) -> str:
    return least if least == most else f"{least} to {most}"


def duration(seconds: float) -> str:
    """'8 s', '3 min', '2.5 h': two digits at most, for it is an estimate."""
    if seconds < 90:
        return f"{max(1, float(f'{seconds:.1g}')):.0f} s"
    minutes = seconds / 60
    return f"{float(f'{minutes:.2g}'):.0f} min" if minutes < 90 else f"{float(f'{minutes / 60:.2g}'):g} h"


def layer_costs(plan: CapturePlan) -> list[str]:
    """What comparing the modules takes, in a sentence; none where they are not compared."""
    layers = plan.layers
    if layers is None:
        return []
    everywhere = (
        "all positions"
        if layers.looked_at == plan.header.rows
        else f"{layers.looked_at:,} of {plan.header.rows:,} positions"
    )
    floor = f", and their floor takes {layers.seeds} reordered prefills more" if layers.seeds else "; no floor is run"
    return [
        f"The outputs of {layers.modules} modules are compared at {everywhere}: the reference's wait on disk, about "
        f"{size(layers.spool_bytes)} until the run is written{floor}."
    ]
