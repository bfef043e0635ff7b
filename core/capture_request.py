"""Request for a capture: the record that the options of `capture`, `judge` and `generate` and the Capture page's form
fill in, and that the run keeps as JSON. No torch here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .command_name import COMMAND, shell_command
from .request_fields import Request, asked


@dataclass(frozen=True, kw_only=True)
class CaptureRequest(Request):
    """One capture as it is asked for. Prompts come from `prompts` (texts), `prompt_files` (a file is one prompt) and
    `prompt_lists` (a file holds many); tokens: 0 scores the prompts, N continues each by up to N tokens; kv: None
    leaves it to the paths; device: None is the best there is.
    """

    model: str = asked(
        "Folder or hub id of a transformers causal language model, a .gguf file, or smollm2, which `model` gets.",
        is_always_typed=True,
    )
    prompts: tuple[str, ...] = asked("A prompt; may be given several times.", (), option="--prompt")
    prompt_files: tuple[str, ...] = asked(
        "A text file that is one prompt; may be given several times.", (), option="--prompt-file"
    )
    prompt_lists: tuple[str, ...] = asked(
        "A file of many prompts: .jsonl with 'prompt', 'text', 'token_ids' or 'messages' in each line, else one a"
        " line.",
        (),
        option="--prompts",
    )
    is_chat: bool = asked(
        "Each prompt's text is a user's message: put it into the tokenizer's chat template.", False, option="--chat"
    )
    system: str | None = asked("What the system message of every chat says.", None)
    reference: str = asked(
        "Path of the reference: prefill, decode, prefill+batch:8, ...", "prefill", is_always_typed=True
    )
    variants: tuple[str, ...] = asked(
        "Path of a variant; may be given several times. Default: decode.", (), option="--variant"
    )
    sweeps: tuple[str, ...] = asked(
        "Add a variant for each value: batch=1,2,3,4,8 puts the reference into batches of each size.",
        (),
        option="--sweep",
    )
    repeat: int = asked("Call every path N times, one after another, as a server would be called.", 1)
    tokens: int = asked("Each side goes on by up to N tokens of its own choice.", 0)
    kv: bool | None = asked(
        "Compare the key/value caches too. Default: where a path reads one.", None, option="--kv/--no-kv"
    )
    layers: bool = asked(
        "Compare what every module of the model puts out too: where it first differs, and how it grows.", False
    )
    layer_floor: int = asked(
        "With --layers: how many reordered forwards give each module's rounding floor; 0 for none.", 2
    )
    layer_positions: tuple[int, ...] = asked(
        "With --layers: look at this position of each prompt, where not all fit on disk; may be given several times.",
        (),
        option="--layer-position",
    )
    kernels: bool = asked(
        "Watch which kernels each side launches, and in which module: every path once more, on the first prompt.", False
    )
    remedies: bool = asked(
        "Try what would make the sides agree (float32, math attention, invariant sums, ...), and what throughput it"
        " keeps.",
        False,
    )
    judge: bool = asked(
        "Also run the controls that tell rounding from a bug: several times the work of the capture.", False
    )
    keep: Literal["all", "figures"] = asked("What the run keeps of the logits: all, or figures (none).", "all")
    dtype: str = asked("float32, float16 or bfloat16.", "bfloat16", is_always_typed=True)
    device: str | None = asked("cpu, cuda, cuda:1. Default: CUDA if there is one.", None)
    revision: str | None = asked("Revision on the hub.", None)
    trust_remote_code: bool = asked("Let the model's repository run its own code.", False)
    name: str | None = asked("What to call the run.", None)
    build: str = asked("Label of what is under test, such as the commit of an engine; the run keeps it.", "")
    seed: int = asked("Seed set before each side.", 0)

    def arguments(self) -> list[str]:
        """Arguments of the command line by which this is captured; what stands at its default is left out."""
        return ["generate" if self.tokens else "capture", *self.words()]

    def typed(self) -> str:
        """The command a person types for it, in one line whose every character is seen: `judge` where a capture is to
        be judged.
        """
        if self.judge and not self.tokens:
            return f"{COMMAND} {shell_command(['judge', *(part for part in self.words() if part != '--judge')])}"
        return f"{COMMAND} {shell_command(self.arguments())}"
