"""What the Capture page's form says, and the command line it amounts to. No Streamlit here."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field
from pathlib import Path

from app.shell import wording
from app.shell.jobs import PromptFile

PROMPT_BYTES = 100_000  # what a command line can carry in one argument, with room to spare
ALL_PROMPT_BYTES = 1_000_000  # and in all of them together


@dataclass(frozen=True)
class CaptureForm:
    """One state of the form. `tokens`: continue the prompts by so many, 0: score them; `kv`: None leaves it to the
    paths; `device`: '' is the best there is; `layers`, `kernels`, `remedies`: run these beside the sides, where prompts
    are scored; `file`: what was dropped, in place of `prompts`.
    """

    model: str
    prompts: tuple[str, ...] = ()
    file: PromptFile | None = None
    is_chat: bool = False
    system: str = ""
    reference: str = "prefill"
    variants: tuple[str, ...] = ("decode",)
    sweep: str = ""
    repeat: int = 1
    tokens: int = 0
    kv: bool | None = None
    layers: bool = False
    kernels: bool = False
    remedies: bool = False
    dtype: str = "bfloat16"
    device: str = ""
    keeps_finished: bool = False
    name: str = ""
    carried: PromptFile | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "carried", self.file or _too_long_to_type(self.prompts))

    @property
    def missing(self) -> str | None:
        """What has yet to be filled in, in a sentence."""
        if not self.model.strip():
            return "Choose a model."
        if self.file is None and not self.prompts:
            return "Write at least one prompt, or drop a file of them."
        if not self.reference:
            return "Choose a reference path."
        if not self.variants and not self.sweep and self.repeat == 1:
            return "Choose at least one variant or a sweep, or call the reference several times."
        return None

    @property
    def title(self) -> str:
        """What the job is called in the list."""
        if self.name:
            return self.name
        against = [*self.variants, *([self.sweep] if self.sweep else [])]
        parts = [
            f"{wording.model_name(self.model)}: {self.reference}",
            f" against {', '.join(against)}" if against else "",
        ]
        parts.append(f", {self.repeat} calls" if self.repeat > 1 and not self.tokens else "")
        parts.append(f", {self.tokens} tokens generated" if self.tokens else "")
        return "".join(parts)

    def arguments(self, carried: Path | None = None) -> list[str]:
        """Of `python -m core`; without the place of the file that is carried, where that is somebody else's to say."""
        typed = [] if self.carried else [f"--prompt={prompt}" for prompt in self.prompts]
        typed += [f"--prompts={carried}"] if carried else []
        own = [f"--tokens={self.tokens}"] if self.tokens else []
        return ["generate" if self.tokens else "capture", *self._common(typed), *own]

    @property
    def typed(self) -> str:
        """What a person would type, with a file of their own."""
        named = ["--prompts", self.carried.name] if self.carried else []
        return shlex.join(["python", "-m", "core", *self.arguments(), *named])

    def _common(self, prompts: list[str]) -> list[str]:
        found = ["--model", self.model.strip(), *prompts]
        if self.is_chat:
            found += ["--chat", *([f"--system={self.system}"] if self.system.strip() else [])]
        found += ["--reference", self.reference]
        found += [part for variant in self.variants for part in ("--variant", variant)]
        found += [f"--sweep={self.sweep}"] if self.sweep else []
        found += ["--repeat", str(self.repeat)] if self.repeat > 1 and not self.tokens else []
        found += ["--kv" if self.kv else "--no-kv"] if self.kv is not None else []
        beside = {"--layers": self.layers, "--kernels": self.kernels, "--remedies": self.remedies}
        found += [option for option, is_asked in beside.items() if is_asked and not self.tokens]
        found += ["--dtype", self.dtype, *(["--device", self.device] if self.device else [])]
        found += ["--keep-finished"] if self.keeps_finished else []
        return found + ([f"--name={self.name}"] if self.name else [])


def split_prompts(text: str) -> tuple[str, ...]:
    """A line of three dashes separates prompts; those of blanks alone are none."""
    parts = [part.strip("\n") for part in ("\n" + text.replace("\r\n", "\n") + "\n").split("\n---\n")]
    return tuple(part for part in parts if part.strip())


def _too_long_to_type(prompts: tuple[str, ...]) -> PromptFile | None:
    """Prompts as a file, where an operating system would not take them as arguments."""
    lengths = [len(prompt.encode("utf-8", "replace")) for prompt in prompts]
    if max(lengths, default=0) <= PROMPT_BYTES and sum(lengths) <= ALL_PROMPT_BYTES:
        return None
    lines = "".join(json.dumps({"text": prompt}) + "\n" for prompt in prompts)
    return PromptFile("prompts.jsonl", lines.encode())
