"""Requests: filled in by options of a command or a page's form, and stored in runs as JSON."""

import json
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, ClassVar, Literal, Self

import msgspec

from .command_name import shell_command
from .errors import UsageError

# values of --declare: parts of a model, and their formats
# (core.inference.controls.precisions.catalogue)
PARTS = ("kv", "weights", "products", "head", "logits", "activations")
FORMATS = ("fp8_e4m3", "fp8_e5m2", "int8", "bf16", "fp16", "tf32", "q8_0", "q4_0", "nf4")
DECLARE = (
    f"PART=FORMAT, an intended lower precision. PART: {', '.join(PARTS)}. FORMAT:"
    f" {', '.join(FORMATS)}."
)


def part_and_format(text: str) -> tuple[str, str]:
    """Split a value of --declare. UsageError lists the parts and formats."""
    part, _, name = text.partition("=")
    if part not in PARTS or name not in FORMATS:
        raise UsageError(
            f"--declare {text}: expected PART=FORMAT. Parts are {', '.join(PARTS)}; formats are"
            f" {', '.join(FORMATS)}.",
        )
    return part, name


def param(help_text: str, default: Any = MISSING, **about: Any) -> Any:
    """Return a field with its help text. about: `option`, its command-line name, and `stored_as`,
    its key in run files, if different; `is_argument`; `is_always_typed`.
    """
    return field(default=default, metadata={"help": help_text, **about})


def option_of(each: Field[Any]) -> str:
    return each.metadata.get("option") or f"--{each.name.replace('_', '-')}"


def _key_of(each: Field[Any]) -> str:
    return each.metadata.get("stored_as", each.name)


@dataclass(frozen=True, kw_only=True)
class Request:
    """Fields made by `param`. A value at its default is neither typed nor stored."""

    command: ClassVar[str]

    def words(self) -> list[str]:
        """Return the words of the command line after the command's name."""
        words = []
        for each in fields(self):
            value = getattr(self, each.name)
            option, *negative = option_of(each).split("/")
            if each.metadata.get("is_argument"):
                words.append(str(value))
            elif value == each.default and not each.metadata.get("is_always_typed"):
                continue
            elif isinstance(value, bool):
                words += [option] if value else negative
            else:
                for one in value if isinstance(value, tuple) else (value,):
                    # else a value that begins with a hyphen is an option
                    is_joined = str(one).startswith("-")
                    words += [f"{option}={one}"] if is_joined else [option, str(one)]
        return words

    def arguments(self) -> list[str]:
        """Return the arguments of this command line."""
        return [self.command, *self.words()]

    def typed(self) -> str:
        """Return the command as a person types it, on one line."""
        return shell_command(self.arguments())

    def settings(self) -> dict[str, Any]:
        """Return the values that are not at their default, by name."""
        values = {each: getattr(self, each.name) for each in fields(self)}
        return {each.name: value for each, value in values.items() if value != each.default}

    def to_json(self) -> str:
        keys = {each.name: _key_of(each) for each in fields(self)}
        stored = {keys[name]: value for name, value in self.settings().items()}
        return json.dumps(stored, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str | None) -> Self | None:
        """Read what `to_json` wrote; None for text that this version does not write."""
        try:
            values = msgspec.json.decode(text or "null", type=dict)
            names = {_key_of(each): each.name for each in fields(cls)}
            if not values.keys() <= names.keys():
                return None
            return msgspec.convert({names[key]: value for key, value in values.items()}, cls)
        except (RecursionError, UsageError, ValueError):
            return None


@dataclass(frozen=True, kw_only=True)
class CaptureRequest(Request):
    """One capture. `prompt_files`: a file is one prompt; `prompt_lists`: a file has many; tokens: 0
    scores the prompts, N continues each by up to N tokens; kv: None leaves it to the paths; device:
    None prefers CUDA.
    """

    model: str = param(
        "Folder or hub id of a causal language model, or of an encoder for --reference encode; a"
        " .gguf file; or smollm2.",
        is_always_typed=True,
    )
    prompts: tuple[str, ...] = param("A prompt; repeatable.", (), option="--prompt")
    prompt_files: tuple[str, ...] = param(
        "A text file that is one prompt.",
        (),
        option="--prompt-file",
    )
    prompt_lists: tuple[str, ...] = param(
        "A file of prompts: .jsonl with 'prompt', 'text' (of a pair also 'text_pair'), 'token_ids'"
        " or 'messages' in each line, else one per line.",
        (),
        option="--prompts",
    )
    is_chat: bool = param(
        "Format each prompt as a user message by the chat template.",
        False,
        option="--chat",
    )
    system: str | None = param("System message of every chat.", None)
    reference: str = param(
        "Execution path of the reference: prefill, decode, ...",
        "prefill",
        is_always_typed=True,
    )
    variants: tuple[str, ...] = param(
        "Execution path to compare with the reference; repeatable. Default: decode.",
        (),
        option="--variant",
    )
    sweeps: tuple[str, ...] = param(
        "One variant per value: batch=1,2,4. Not the command sweep.",
        (),
        option="--sweep",
    )
    repeat: int = param("Run every path N times in sequence, as repeated requests.", 1)
    tokens: int = param("Continue each side greedily by up to N tokens.", 0)
    kv: bool | None = param(
        "Compare the KV caches. Default: if a path uses one.",
        None,
        option="--kv/--no-kv",
    )
    layers: bool = param(
        "Compare every module's output: where the difference starts and how it grows.",
        False,
    )
    layer_floor: int = param(
        "With --layers: reordered forwards that measure the noise floor; 0: none.",
        2,
    )
    layer_positions: tuple[int, ...] = param(
        "With --layers: keep this position of each prompt if the disk has room for some only;"
        " repeatable.",
        (),
        option="--layer-position",
    )
    kernels: bool = param(
        "Record which kernels each side launches, by module, on the first prompt.",
        False,
    )
    mitigations: bool = param(
        "Measure changes that may make the sides agree, and their throughput.",
        False,
        stored_as="remedies",
    )
    judge: bool = param("Run the checks of `judge` too; several times the work.", False)
    declares: tuple[str, ...] = param(DECLARE, (), option="--declare")
    keep: Literal["all", "figures"] = param(
        "all: store every logit. figures: only metrics and hashes.",
        "all",
    )
    dtype: str = param("float32, float16 or bfloat16.", "bfloat16", is_always_typed=True)
    device: str | None = param("cpu, cuda, cuda:1. Default: CUDA if there is one.", None)
    revision: str | None = param("Revision on the hub.", None)
    trust_remote_code: bool = param("Let the model's repository run its own code.", False)
    name: str | None = param("Name of the run.", None)
    build: str = param("Label of the build under test, such as a commit; stored in the run.", "")
    seed: int = param("Seed set before each side.", 0)

    def __post_init__(self) -> None:
        for text in self.declares:
            part_and_format(text)

    def arguments(self) -> list[str]:
        return ["generate" if self.tokens else "capture", *self.words()]

    def typed(self) -> str:
        """Return the command as a person types it: `judge` for a capture with --judge."""
        if self.judge and not self.tokens:
            words = [part for part in self.words() if part != "--judge"]
            return shell_command(["judge", *words])
        return super().typed()
