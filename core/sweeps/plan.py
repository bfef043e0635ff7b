"""Plan of a sweep: `sweep.toml`, expanded to cells, each a capture that is asked for. No torch here."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec

from ..capture_request import CaptureRequest
from ..engines.registry import names as engine_names
from ..errors import UsageError
from ..prompt_files import prompts_of
from ..text import plural, shown

Axis = Literal["model", "prompts", "reference", "engine", "path", "dtype", "device"]
AXES: tuple[Axis, ...] = get_args(Axis)
OWN_ENGINE = "transformers"  # of this process; paths of it bear no name of an engine
APART = ", apart"  # a transformers of another process, `transformers:decode` among the paths
MOST_CELLS = 100_000
_DIGEST = 16  # hexadecimal digits, 64 bits: of 100,000 cells two are alike with a chance of 3e-10
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
    """One cell: its place on each axis, its capture, and the digest of what is asked for, the same everywhere."""

    axes: Mapping[str, str]
    request: CaptureRequest
    asked: str

    @property
    def title(self) -> str:
        """The cell in a line: `model, decode against prefill, bfloat16, parser.txt`."""
        axes = self.axes
        sides = f"{self.request.variants[0]} against {axes['reference']}"
        parts = (in_short("model", axes["model"]), sides, axes["dtype"], in_short("prompts", axes["prompts"]))
        return ", ".join(filter(None, (*parts, axes["device"])))

    def is_unchanged(self) -> bool:
        """Return whether the files of its prompts hold here and now what they held when the plan was read."""
        return self.asked == _digest_of(self.request, self.axes["model"], _digest_of_prompts(self.request))


@dataclass(frozen=True)
class SweepPlan:
    """Plan of a sweep, with every cell of it."""

    name: str
    cells: tuple[Cell, ...]

    @cached_property
    def _by_digest(self) -> dict[str, Cell]:
        return {cell.asked: cell for cell in self.cells}

    def cell(self, asked: str) -> Cell:
        """The cell of a digest, or of a unique beginning of it; UsageError where there is none or several."""
        found = [self._by_digest[asked]] if asked in self._by_digest else []
        if asked and not found:
            found = [cell for cell in self.cells if cell.asked.startswith(asked)]
        if len(found) != 1:
            several = "several" if found else "no"
            raise UsageError(f"the plan has {several} cells '{shown(asked)}'; --dry-run lists them.")
        return found[0]


def read_plan(path: Path, build: str = "") -> SweepPlan:
    """Read a plan; nothing is loaded. build: what names the state of the engines under test, such as a commit."""
    try:
        asked = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), _PlanFile)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: {error}. docs/guides/sweeps.md lists the keys of a plan.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: cannot be read as a plan ({error}).") from None
    excluded = [{axis: [one] if isinstance(one, str) else one for axis, one in each.items()} for each in asked.exclude]
    if not all(excluded):
        raise UsageError(f"{path}: [[exclude]] names no axis.")
    lists = [tuple(dict.fromkeys(getattr(asked, f"{axis.rstrip('s')}s"))) for axis in AXES]
    if (count := math.prod(map(len, lists))) > MOST_CELLS:
        raise UsageError(f"{path}: {count:,} cells; a plan has at most {MOST_CELLS:,}.")
    engines = frozenset(engine_names())  # each call reads the configuration
    cells: dict[str, Cell] = {}
    digests: dict[str, str] = {}
    for values in itertools.product(*lists):
        axes = dict(zip(AXES, values, strict=True))
        engine, _, rest = axes["path"].partition(":")
        if rest and engine in engines:
            named = engine + APART * (engine == OWN_ENGINE)
            axes |= {"engine": named, "path": rest}  # it names its engine, and stands once
        if any(all(axes[axis] in wanted for axis, wanted in one.items()) for one in excluded):
            continue
        request = _request(path, axes, asked, build)
        prompts = axes["prompts"]
        if prompts not in digests:
            digests[prompts] = _digest_of_prompts(request)
        digest = _digest_of(request, axes["model"], digests[prompts])
        cells.setdefault(digest, Cell(axes, request, digest))
    if not cells:
        raise UsageError(f"{path}: every cell is excluded.")
    return SweepPlan(asked.name or path.stem, tuple(cells.values()))


def in_short(axis: str, value: str) -> str:
    """A value of an axis as tables show it: files and folders by their own name."""
    return Path(value).name if axis in ("model", "prompts") else value


def _request(path: Path, axes: Mapping[str, str], asked: _PlanFile, build: str) -> CaptureRequest:
    """Return the capture of a cell, of one variant."""
    prompts = str(_beside(path, axes["prompts"]))
    is_list = prompts.endswith(".jsonl")
    model = _beside(path, axes["model"])
    own = "" if axes["engine"] == OWN_ENGINE else f"{axes['engine'].removesuffix(APART)}:"
    return CaptureRequest(
        model=str(model) if model.exists() else axes["model"],
        prompt_files=() if is_list else (prompts,),
        prompt_lists=(prompts,) if is_list else (),
        is_chat=asked.chat,
        reference=axes["reference"],
        variants=(f"{own}{axes['path']}",),
        repeat=asked.repeats,
        layers=asked.layers,
        judge=asked.judge,
        dtype=axes["dtype"],
        device=axes["device"] or None,
        seed=asked.seed,
        keep=asked.keep,
        build=build,
    )


def _beside(path: Path, named: str) -> Path:
    """A file that the plan names, from the plan's own folder; relative to where we are, if it lies below."""
    place = (path.parent / Path(named).expanduser()).absolute()
    here = Path.cwd()
    return Path(os.path.relpath(place, here)) if place.is_relative_to(here) else place


def _digest_of_prompts(request: CaptureRequest) -> str:
    found = [asdict(replace(prompt, where="")) for prompt in prompts_of(request)]
    return hashlib.sha256(json.dumps(found, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def _digest_of(request: CaptureRequest, model: str, prompts: str) -> str:
    """Digest of what a cell asks for: prompts by contents, the model by its name in the plan, the build left out."""
    asked = replace(request, prompt_files=(), prompt_lists=(), build="", model=model)
    return short_digest({"request": json.loads(asked.to_json()), "prompts": prompts})


def short_digest(value: Any) -> str:
    """First digits of the sha256 of a value as JSON with its keys in order."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST]


def counted(cells: Sequence[Cell]) -> str:
    """`12 cells: 2 models x 3 paths x 2 dtypes`."""
    counts = [(axis, len({cell.axes[axis] for cell in cells})) for axis in AXES]
    parts = [f"{count} {axis.rstrip('s')}s" for axis, count in counts if count > 1]
    return plural(len(cells), "cell") + (f": {' x '.join(parts)}" if parts else "")
