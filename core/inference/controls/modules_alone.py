"""Each module alone: given what the other side's modules put out before it, does it put out what
that side's did?

A forward in which every module's output is replaced by the other side's after it was compared: a
fault shows where it is and nowhere after it. The measure is the module's own rounding: float32 to
float64 on the same input, or in 16 bits randomized rounding of the same module. At the logits a
fault of one module adds to the rounding of all of them.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...checks.modules_alone import ALONE, LARGEST_ALONE, ModulesAlone, alone_evidence
from ...checks.modules_in_16_bits import ModuleRounding
from ...closeness.coherence import (
    Direction,
    Sample,
    compare_directions,
    directions,
    limits_of,
    most_telling,
    sample_of,
)
from ...errors import CaptureError
from ...evidence import MISSING, Evidence, Unmeasured
from ...numerics.arrays import Flags, Floats
from ...numerics.statistic import TINY
from ..models.devices import row_sums
from ..models.dtypes import in_float32, in_float64
from ..models.model import Ids, LoadedModel
from ..models.torch_errors import foreign_errors_stop
from ..paths.batch import ignore
from ..paths.engines import PLAIN, Prompts, RunnableSide
from ..paths.hooks import ModuleTrace, module_of_call, name_of_call
from ..watching.modules import traced_modules, watched_modules
from .drawn_roundings import DRAWS, DrawnRounding
from .reordering import float_tensors

OUTPUT_BYTES = 256 << 20  # of the side's outputs at once
# kinds of the modules inside attention and MLP that are looked at beside these
_INSIDE = ("projection", "mlp")
_POSITIONS = 256  # that are looked at in 16 bits
# Of directions of errors in 16 bits: sound modules reach 0.8 of these
# (docs/explanation/calibration.md); in a column 0.37 of rounding if a bias is added to a rounded
# sum: the same happens in all rows
_LIMITS = limits_of(0.1, evidence=4.5, column=0.5)
Outputs = Mapping[str, Tensor]
"""By call of a module, [positions, width]."""


def module_row(
    loaded: LoadedModel,
    ids: Ids,
    number: int,
    position: int,
    sides: Sequence[RunnableSide],
    plain: RunnableSide,
    *,
    is_below_float32: bool,
) -> Evidence | None:
    """Take a side apart on a prompt. sides: with its settings at their widest, and as it is, the
    first that differs counts; position: has to be among those that are compared; plain: the model's
    forward, with the choices of the sides if they are forced; is_below_float32: a fault may be too
    small for a module.
    """
    name = sides[-1].name
    inputs = f"on prompt {number}, fed identical inputs, compared with float64"
    try:
        count = fits(loaded, len(ids))
        if count <= position:
            raise CaptureError(f"position {position} of prompt {number} does not fit into memory.")
        with foreign_errors_stop("modules one at a time", "choose a smaller model"):
            for side in dict.fromkeys(sides):
                alone = modules_alone(loaded, ids[:count], side, plain)
                control = f"every module of '{side.name}' {inputs}"
                is_row = loaded.encoder is not None
                row = alone_evidence(control, alone, name, number, is_row=is_row)
                if alone.ratios.max() > LARGEST_ALONE:
                    return row
    except CaptureError as error:
        says = f"The modules cannot be taken one at a time: {error}"
        control = f"every module of '{name}' {inputs}"
        return Evidence(
            ALONE,
            control,
            Unmeasured(),
            MISSING,
            says,
            name,
        )
    return None if is_below_float32 else row


class ModuleOutputs(ModuleTrace):
    """Module outputs [positions, width] of a prompt, in the order in which modules ran.
    is_computed: positions.
    """

    def __init__(self, prompt: Ids) -> None:
        super().__init__(prompt, range(len(prompt)))
        self.outputs: dict[str, Tensor] = {}
        self.is_computed: dict[str, Flags] = {}

    def take(self, name: str, first: int, output: Tensor) -> None:
        places = slice(first, first + len(output))
        count = len(self.positions)
        is_computed = self.is_computed.setdefault(name, np.zeros(count, bool))
        if is_computed[places].any() and not self.is_told:
            self.is_ambiguous = True
        is_computed[places] = True
        if name not in self.outputs:
            self.outputs[name] = output.new_full((count, output.shape[1]), torch.nan)
        self.outputs[name][places] = output

    def _own_row(self, output: Tensor) -> Tensor | None:
        """Row of the prompt, of [rows, columns, width] alone: both sides compare the same
        modules.
        """
        assert self._computed is not None
        is_of_rows = output.ndim == 3 and len(output) > self._computed[0]
        return super()._own_row(output) if is_of_rows else None


def modules_alone(
    loaded: LoadedModel,
    prompt: Ids,
    side: RunnableSide,
    plain: RunnableSide = PLAIN,
) -> ModulesAlone:
    """Take a side apart, module by module, on one prompt.

    CaptureError if its modules cannot be followed.
    """
    modules = followed_modules(loaded.model)
    with in_float32(loaded) as model:
        outputs, calls = record_outputs(model, prompt, side, modules)
        own = own_outputs(model, prompt, modules, outputs, calls, plain)
    squares: dict[str, list[Floats]] = {}

    def compare(name: str, exact: Tensor, output: Tensor) -> None:
        values = output.double()
        error = values - exact
        norms = np.maximum(row_sums(values.square()), TINY)
        along = row_sums(error * values) ** 2 / norms
        rounding = row_sums((own[name].double() - exact).square())
        parts = row_sums(error.square()), along, rounding, norms
        squares[name] = [part / output.shape[1] for part in parts]

    outputs = {name: outputs[name] for name in own}
    with in_float64(loaded) as model, graft_outputs(modules, outputs, compare):
        plain.run_on(model)(prompt, ignore)
    if not squares:
        raise CaptureError(f"'{side.name}' hands on no module's outputs at every position.")
    parts = zip(*squares.values(), strict=True)
    return ModulesAlone(tuple(squares), *map(np.array, parts))


def followed_modules(model: Any) -> dict[str, nn.Module]:
    """Return the modules that are compared, by name."""
    modules = traced_modules(model)
    for each in watched_modules(model):
        if each.kind in _INSIDE:
            modules[each.name] = each.module
    # BERT's are outside of the module that has the blocks
    for name, module in model.named_modules():
        if name.endswith("embeddings"):
            modules[name] = module
    return modules


def record_outputs(
    loaded: LoadedModel,
    prompt: Ids,
    side: RunnableSide,
    modules: Mapping[str, nn.Module],
) -> tuple[dict[str, Tensor], Counter[str]]:
    """Run a side and return what its modules put out at every position, by call, and the calls of
    each module. CaptureError if they cannot be followed or are not finite.
    """
    trace = ModuleOutputs(prompt)
    trace.modules = modules.keys()
    with nullcontext() if side.hands_in else trace.following(loaded.model, modules):
        side.run_on(loaded, trace)(prompt, ignore)
    if trace.is_ambiguous:
        raise CaptureError(
            f"'{side.name}' computes positions twice, so its forwards could not be followed.",
        )
    every = {name: rows for name, rows in trace.outputs.items() if trace.is_computed[name].all()}
    outputs = {}
    for name, rows in every.items():
        if not bool(rows.isfinite().all()):
            raise CaptureError(f"'{side.name}' gives NaN or infinity, first at {name}.")
        parent = every.get(name.rpartition(".")[0])
        # if they are the same, the parent's name says more
        if parent is None or not torch.equal(parent, rows):
            outputs[name] = rows
    return outputs, Counter(map(module_of_call, every))


def own_outputs(
    loaded: LoadedModel,
    prompt: Ids,
    modules: Mapping[str, nn.Module],
    outputs: Outputs,
    calls_of_side: Counter[str],
    plain: RunnableSide,
) -> dict[str, Tensor]:
    """Return what the model's modules put out if what ran before them on a side is replaced by
    `outputs`, as of `record_outputs`, by call.
    """
    own: dict[str, Tensor] = {}

    def keep(name: str, output: Tensor, _: Tensor) -> None:
        own[name] = output.clone()

    with graft_outputs(modules, outputs, keep) as calls:
        plain.run_on(loaded)(prompt, ignore)
    # if a forward of the side calls a module less often, its calls are not those of the model
    is_alike = {module: calls[module] == calls_of_side[module] for module in calls}
    return {name: output for name, output in own.items() if is_alike[module_of_call(name)]}


def fits(loaded: LoadedModel, positions: int) -> int:
    """Return how many positions, at most `positions`, two copies of all outputs may have in
    memory.
    """
    width = sum(each.width for each in watched_modules(loaded.model))
    return min(positions, OUTPUT_BYTES // (8 * max(1, width)))


@contextmanager
def graft_outputs(
    modules: Mapping[str, nn.Module],
    outputs: Outputs,
    see: Callable[[str, Tensor, Tensor], Any],
) -> Iterator[Counter[str]]:
    """Show every output of one forward inside and replace it. outputs: by call, [positions, width]
    -> calls of each module
    """
    calls: Counter[str] = Counter()

    def graft(module: str, _: Any, __: Any, output: Any) -> Any:
        calls[module] += 1
        name = name_of_call(module, calls[module])
        if name not in outputs:
            return None
        own = output[0] if isinstance(output, tuple) and output else output
        other = outputs[name]
        if not isinstance(own, Tensor):
            return None
        if own.numel() != other.numel() or own.shape[-1] != other.shape[-1]:
            return None
        see(name, own.detach().reshape(other.shape), other)
        # a copy: models multiply in place
        other = other.to(own.dtype, copy=True).reshape(own.shape)
        return (other, *output[1:]) if isinstance(output, tuple) else other

    with ExitStack() as hooks:
        for module in dict.fromkeys(map(module_of_call, outputs)):
            hook = modules[module].register_forward_hook(partial(graft, module))
            hooks.enter_context(hook)
        yield calls


def module_rounding(
    loaded: LoadedModel,
    prompts: Prompts,
    side: RunnableSide,
    plain: RunnableSide = PLAIN,
) -> ModuleRounding:
    """Compare every module of a side with randomized rounding of the same module. plain: the
    model's forward, with the choices that the side is forced to make if there are.

    CaptureError if its modules cannot be followed.
    """
    modules = {
        name: module
        for name, module in followed_modules(loaded.model).items()
        # positions may begin elsewhere, which attention does not see
        if "rotary" not in type(module).__name__.lower()
    }
    recorded = []
    left = fits(loaded, _POSITIONS)
    for prompt in prompts:
        ids = prompt[:left]
        left -= len(ids)
        if ids:
            recorded.append((ids, *record_outputs(loaded, ids, side, modules)))

    def replay(model: LoadedModel, mode: AbstractContextManager[Any]) -> Outputs:
        pieces = defaultdict(list)
        for ids, outputs, calls in recorded:
            with mode:
                own = own_outputs(model, ids, modules, outputs, calls, plain)
            for name, output in own.items():
                pieces[name].append(output)
        return {
            name: torch.cat(each) for name, each in pieces.items() if len(each) == len(recorded)
        }

    with in_float32(loaded) as wide:
        exact = replay(wide, nullcontext())
    # none of an engine in another process, or if no position fits into memory
    if not exact:
        raise CaptureError(f"'{side.name}' hands on no module's outputs at every position.")
    of_side = {name: torch.cat([outputs[name] for _, outputs, _ in recorded]) for name in exact}
    # mean squares [forwards] of the side, of the model's own forward, and of each draw
    squares: dict[str, list[float]] = {name: [] for name in exact}

    def errors_of(outputs: Outputs) -> Iterator[tuple[str, Tensor]]:
        for name, rows in exact.items():
            error = outputs[name].double() - rows.double()
            squares[name].append(float(error.square().mean()))
            yield name, error

    # of modules whose errors have a direction on the side
    samples: dict[str, Sample] = {}
    found: dict[str, list[list[Direction]]] = {}
    for name, error in errors_of(of_side):
        sample = sample_of(exact[name].cpu().numpy())
        actual = directions(error.cpu().numpy(), sample)
        if any(each.evidence > _LIMITS[each.kind].evidence for each in actual):
            samples[name] = sample
            found[name] = [actual]
    # the model's own too: constants and polynomials of its kernels have directions, draws have none
    modes: list[AbstractContextManager[Any]] = [nullcontext()]
    modes += [DrawnRounding(loaded.torch_dtype, seed) for seed in range(DRAWS)]
    for mode in modes:
        for name, error in errors_of(replay(loaded, mode)):
            if name in found:
                found[name].append(directions(error.cpu().numpy(), samples[name]))
    # directions that rounding has not
    faults = {}
    for name, (actual, *trusted) in found.items():
        side_rms, _, *draws_rms = np.sqrt(squares[name])
        rounding = max(float(np.mean(draws_rms)), TINY)
        larger = max(1.0, side_rms / rounding)
        compared = compare_directions(actual, trusted, rounding, larger, _LIMITS)
        if of_module := [each for each in compared if each.is_fault]:
            faults[name] = str(most_telling(of_module))
    every = np.array(list(squares.values()))
    return ModuleRounding(tuple(exact), every[:, 0], every[:, 2:].T, faults)


def first_not_finite(loaded: LoadedModel, ids: Ids, side: RunnableSide) -> str | None:
    """Run a prompt and return the first module that makes NaN or infinity of finite inputs, or
    None.
    """
    names: list[str] = []

    # negative infinity is a mask
    def is_finite(values: Any) -> bool:
        tensors = float_tensors(values)
        return not any(bool((each.isnan() | each.isposinf()).any()) for each in tensors)

    def look(
        name: str,
        _: Any,
        arguments: Any,
        keywords: Any,
        output: Any,
    ) -> None:
        if name and not names and is_finite((arguments, keywords)) and not is_finite(output):
            names.append(name)

    with ExitStack() as hooks:
        for name, module in loaded.model.named_modules():
            hook = module.register_forward_hook(partial(look, name), with_kwargs=True)
            hooks.enter_context(hook)
        side.run_on(loaded)(ids, ignore)
    return next(iter(names), None)
