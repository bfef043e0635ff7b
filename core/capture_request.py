"""Request for a capture: the record that the options of `capture`, `judge` and `generate` and the Capture page's form
fill in, and that the run keeps as JSON. No torch here.
"""

from __future__ import annotations

import json
from dataclasses import MISSING, Field, asdict, dataclass, field, fields
from typing import Any, Literal, Self, get_args, get_origin, get_type_hints

from .command_name import COMMAND, shell_command
from .errors import UsageError


def _asked(help_text: str, default: Any = MISSING, *, option: str = "", is_always_typed: bool = False) -> Any:
    """A field with its help text; option: how the command line calls it, where that is not the field's own name."""
    about = {"help": help_text, "option": option, "is_always_typed": is_always_typed}
    return field(metadata=about) if default is MISSING else field(default=default, metadata=about)


@dataclass(frozen=True, kw_only=True)
class CaptureRequest:
    """One capture as it is asked for. Prompts come from `prompts` (texts), `prompt_files` (a file is one prompt) and
    `prompt_lists` (a file holds many); tokens: 0 scores the prompts, N continues each by up to N tokens; kv: None
    leaves it to the paths; device: None is the best there is.
    """

    model: str = _asked(
        "Folder or hub id of a transformers causal language model, a .gguf file, or smollm2, which `model` gets.",
        is_always_typed=True,
    )
    prompts: tuple[str, ...] = _asked("A prompt; may be given several times.", (), option="--prompt")
    prompt_files: tuple[str, ...] = _asked(
        "A text file that is one prompt; may be given several times.", (), option="--prompt-file"
    )
    prompt_lists: tuple[str, ...] = _asked(
        "A file of many prompts: .jsonl with 'prompt', 'text', 'token_ids' or 'messages' in each line, else one a"
        " line.",
        (),
        option="--prompts",
    )
    is_chat: bool = _asked(
        "Each prompt's text is a user's message: put it into the tokenizer's chat template.", False, option="--chat"
    )
    system: str | None = _asked("What the system message of every chat says.", None)
    reference: str = _asked(
        "Path of the reference: prefill, decode, prefill+batch:8, ...", "prefill", is_always_typed=True
    )
    variants: tuple[str, ...] = _asked(
        "Path of a variant; may be given several times. Default: decode.", (), option="--variant"
    )
    sweeps: tuple[str, ...] = _asked(
        "Add a variant for each value: batch=1,2,3,4,8 puts the reference into batches of each size.",
        (),
        option="--sweep",
    )
    repeat: int = _asked("Call every path N times, one after another, as a server would be called.", 1)
    tokens: int = _asked("Each side goes on by up to N tokens of its own choice.", 0)
    kv: bool | None = _asked(
        "Compare the key/value caches too. Default: where a path reads one.", None, option="--kv/--no-kv"
    )
    layers: bool = _asked(
        "Compare what every module of the model puts out too: where it first differs, and how it grows.", False
    )
    layer_floor: int = _asked(
        "With --layers: how many reordered forwards give each module's rounding floor; 0 for none.", 2
    )
    layer_positions: tuple[int, ...] = _asked(
        "With --layers: look at this position of each prompt, where not all fit on disk; may be given several times.",
        (),
        option="--layer-position",
    )
    kernels: bool = _asked(
        "Watch which kernels each side launches, and in which module: every path once more, on the first prompt.", False
    )
    remedies: bool = _asked(
        "Try what would make the sides agree (float32, math attention, invariant sums, ...), and what throughput it"
        " keeps.",
        False,
    )
    judge: bool = _asked(
        "Also run the controls that tell rounding from a bug: several times the work of the capture.", False
    )
    keep: Literal["all", "flips", "figures"] = _asked(
        "What the run keeps of the logits: all; flips: those at flips, at near ties and beside them; figures: none.",
        "all",
    )
    dtype: str = _asked("float32, float16 or bfloat16.", "bfloat16", is_always_typed=True)
    device: str | None = _asked("cpu, cuda, cuda:1. Default: CUDA if there is one.", None)
    revision: str | None = _asked("Revision on the hub.", None)
    trust_remote_code: bool = _asked("Let the model's repository run its own code.", False)
    name: str | None = _asked("What to call the run.", None)
    build: str = _asked("Label of what is under test, such as the commit of an engine; the run keeps it.", "")
    seed: int = _asked("Seed set before each side.", 0)
    keeps_finished: bool = _asked(
        "Where a later side fails, keep the run of those before it (two at least).", False, option="--keep-finished"
    )

    def arguments(self) -> list[str]:
        """Arguments of the command line by which this is captured; what stands at its default is left out."""
        return ["generate" if self.tokens else "capture", *self._options()]

    def typed(self) -> str:
        """The command a person types for it, in one line whose every character is seen: `judge` where a capture is to
        be judged.
        """
        if self.judge and not self.tokens:
            return f"{COMMAND} {shell_command(['judge', *(part for part in self._options() if part != '--judge')])}"
        return f"{COMMAND} {shell_command(self.arguments())}"

    def to_json(self) -> str:
        """JSON object of the fields that do not stand at their defaults."""
        values = asdict(self)
        kept = {each.name: values[each.name] for each in fields(self) if values[each.name] != each.default}
        return json.dumps(kept, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str | None) -> Self | None:
        """Read what `to_json` wrote; None for None, and for text that this version cannot have written or that cannot
        be typed: a run file may come from anybody.
        """
        try:
            values = json.loads(text or "null")
            json.dumps(values, ensure_ascii=False).encode()  # half a surrogate pair can be neither shown nor typed
        except (ValueError, RecursionError):
            return None
        types = get_type_hints(cls)
        if not isinstance(values, dict) or not isinstance(values.get("model"), str):
            return None
        if not all(name in types and _fits(value, types[name]) for name, value in values.items()):
            return None
        given: dict[str, Any] = {n: tuple(value) if isinstance(value, list) else value for n, value in values.items()}
        found = cls(**given)
        return None if any("\0" in part for part in found.arguments()) else found  # which no command can be given

    def _options(self) -> list[str]:
        found: list[str] = []
        for each in fields(self):
            value, (option, *negative) = getattr(self, each.name), option_of(each).split("/")
            if value == each.default and not each.metadata["is_always_typed"]:
                continue
            if isinstance(value, bool):
                found += [option] if value else negative
                continue
            for one in value if isinstance(value, tuple) else (value,):
                found += [f"{option}={one}"] if str(one).startswith("-") else [option, str(one)]
        return found


def option_of(field: Field[Any]) -> str:
    """Command-line option of a field of a CaptureRequest."""
    return field.metadata["option"] or f"--{field.name.replace('_', '-')}"


def field_of(name: str) -> Field[Any]:
    """A field of CaptureRequest by its name; UsageError where there is none."""
    found = next((each for each in fields(CaptureRequest) if each.name == name), None)
    if found is None:
        raise UsageError(f"a capture is not asked for '{name}'.")
    return found


def _fits(value: object, wanted: Any) -> bool:
    """True for a value of JSON of the type that a field declares."""
    if get_origin(wanted) is tuple:
        return isinstance(value, list) and all(_fits(one, get_args(wanted)[0]) for one in value)
    if get_origin(wanted) is Literal:
        return value in get_args(wanted)
    return type(value) in (get_args(wanted) or (wanted,))
