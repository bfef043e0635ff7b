"""Plan of a sweep: `sweep.toml`, expanded to cells, each a request for a capture. No torch here."""

import hashlib
import itertools
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec

from ..capture_request import CaptureRequest
from ..engines.registry import names as engine_names
from ..errors import UsageError
from ..prompt_files import prompts_of
from ..text import clean, plural

Axis = Literal["model", "prompts", "reference", "engine", "path", "dtype", "device"]
AXES: tuple[Axis, ...] = get_args(Axis)
# the engine of this process, whose paths have no engine name
OWN_ENGINE = "transformers"
# a transformers of another process, `transformers:decode` among the paths
APART = ", apart"
MOST_CELLS = 100_000
# hexadecimal digits, 64 bits: of 100,000 cells two collide with a chance of 3e-10
_DIGITS = 16
Values = tuple[str, ...]


class _PlanFile(msgspec.Struct, forbid_unknown_fields=True):
    """`sweep.toml`."""

    models: Annotated[Values, msgspec.Meta(min_length=1)]
    prompts: Annotated[Values, msgspec.Meta(min_length=1)]
    paths: Annotated[Values, msgspec.Meta(min_length=1)]
    references: Values = ("prefill",)
    engines: Values = (OWN_ENGINE,)
    dtypes: Values = ("bfloat16",)
    devices: Values = ("",)
    name: str = ""
    repeats: int = 1
    judge: bool = True
    layers: bool = False
    chat: bool = False
    seed: int = 0
    keep: Literal["all", "figures"] = "all"
    exclude: list[dict[Axis, str | list[str]]] = []


@dataclass(frozen=True)
class Cell:
    """One cell: its place on each axis, its capture, and the digest of its request, the same on
    every machine.
    """

    axes: Mapping[str, str]
    request: CaptureRequest
    digest: str

    @property
    def title(self) -> str:
        """The cell in a line: `model, decode vs prefill, bfloat16, parser.txt`."""
        short = {axis: in_short(axis, value) for axis, value in self.axes.items()}
        sides = f"{self.request.variants[0]} vs {short['reference']}"
        parts = short["model"], sides, short["dtype"], short["prompts"], short["device"]
        return ", ".join(filter(None, parts))

    def is_unchanged(self) -> bool:
        """Return whether the files of its prompts are the same as when the plan was read."""
        prompts = _digest_of_prompts(self.request)
        return self.digest == _digest_of(self.request, self.axes["model"], prompts)


@dataclass(frozen=True)
class SweepPlan:
    """Plan of a sweep with all its cells."""

    name: str
    cells: tuple[Cell, ...]

    def cell(self, digest: str) -> Cell:
        """Return the cell of a digest. UsageError if there is none."""
        for cell in self.cells:
            if cell.digest == digest:
                return cell
        raise UsageError(f"the plan has no cell '{clean(digest)}'; --dry-run lists them.")


def read_plan(path: Path, build: str = "") -> SweepPlan:
    """Read a plan; nothing is loaded. build: label of the engines under test, such as a commit."""
    try:
        plan = msgspec.toml.decode(path.read_bytes(), type=_PlanFile)
    except msgspec.ValidationError as error:
        raise UsageError(
            f"{path}: {error}. docs/guides/sweeps.md lists the keys of a plan.",
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: cannot be read as a plan ({error}).") from None
    excluded = [
        {axis: [one] if isinstance(one, str) else one for axis, one in each.items()}
        for each in plan.exclude
    ]
    if not all(excluded):
        raise UsageError(f"{path}: [[exclude]] names no axis.")
    lists = [tuple(dict.fromkeys(getattr(plan, f"{axis.rstrip('s')}s"))) for axis in AXES]
    if (count := math.prod(map(len, lists))) > MOST_CELLS:
        raise UsageError(f"{path}: {count:,} cells; a plan has at most {MOST_CELLS:,}.")
    # each call reads the configuration
    engines = frozenset(engine_names())
    cells: dict[str, Cell] = {}
    digests: dict[str, str] = {}
    for values in itertools.product(*lists):
        axes = dict(zip(AXES, values, strict=True))
        engine, _, rest = axes["path"].partition(":")
        if rest and engine in engines:
            name = engine + APART * (engine == OWN_ENGINE)
            # a path with its engine is one cell, whatever `engines` lists
            axes |= {"engine": name, "path": rest}
        if any(all(axes[axis] in choices for axis, choices in one.items()) for one in excluded):
            continue
        request = _request(path, axes, plan, build)
        prompts = axes["prompts"]
        if prompts not in digests:
            digests[prompts] = _digest_of_prompts(request)
        digest = _digest_of(request, axes["model"], digests[prompts])
        cells.setdefault(digest, Cell(axes, request, digest))
    if not cells:
        raise UsageError(f"{path}: every cell is excluded.")
    return SweepPlan(plan.name or path.stem, tuple(cells.values()))


def in_short(axis: str, value: str) -> str:
    """Return a value of an axis for a table: files and folders without their parents."""
    return Path(value).name if axis in ("model", "prompts") else value


def _request(path: Path, axes: Mapping[str, str], plan: _PlanFile, build: str) -> CaptureRequest:
    """Return the capture of a cell, of one variant."""
    prompts = str(_resolve(path, axes["prompts"]))
    is_list = prompts.endswith(".jsonl")
    model = _resolve(path, axes["model"])
    own = "" if axes["engine"] == OWN_ENGINE else f"{axes['engine'].removesuffix(APART)}:"
    return CaptureRequest(
        model=str(model) if model.exists() else axes["model"],
        prompt_files=() if is_list else (prompts,),
        prompt_lists=(prompts,) if is_list else (),
        is_chat=plan.chat,
        reference=axes["reference"],
        variants=(f"{own}{axes['path']}",),
        repeat=plan.repeats,
        layers=plan.layers,
        judge=plan.judge,
        dtype=axes["dtype"],
        device=axes["device"] or None,
        seed=plan.seed,
        keep=plan.keep,
        build=build,
    )


def _resolve(path: Path, name: str) -> Path:
    """Return a file of the plan, relative to the plan's folder; shortened if it is in the working
    directory.
    """
    place = (path.parent / Path(name).expanduser()).absolute()
    folder = Path.cwd()
    return Path(os.path.relpath(place, folder)) if place.is_relative_to(folder) else place


def _digest_of_prompts(request: CaptureRequest) -> str:
    entries = []
    for prompt in prompts_of(request):
        # digests since 1.0.0 have a part `where`, which is empty
        entry = asdict(prompt) | {"where": ""}
        entries.append({name: entry[name] for name in ("text", "token_ids", "messages", "where")})
    return _digest(entries)


def _digest_of(request: CaptureRequest, model: str, prompts: str) -> str:
    """Return the digest of a cell's request: prompts by content, the model by its name in the plan,
    no build.
    """
    portable = replace(request, prompt_files=(), prompt_lists=(), build="", model=model)
    return short_digest({"request": json.loads(portable.to_json()), "prompts": prompts})


def short_digest(value: Any) -> str:
    """Return the first digits of the sha256 of a value as JSON with sorted keys."""
    return _digest(value)[:_DIGITS]


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def cell_counts(cells: Sequence[Cell]) -> str:
    """`12 cells: 2 models x 3 paths x 2 dtypes`."""
    parts = []
    for axis in AXES:
        count = len({cell.axes[axis] for cell in cells})
        if count > 1:
            parts.append(f"{count} {axis.rstrip('s')}s")
    return plural(len(cells), "cell") + (f": {' x '.join(parts)}" if parts else "")
