"""Values of the Capture page's form, and the command line they amount to. No Streamlit here."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from app.shell import wording
from app.shell.jobs import PromptFile
from core.capture_request import CaptureRequest
from core.packaged_models import PACKAGED, is_here
from core.subprocess_json import ROOT

PROMPT_BYTES = 100_000  # what a command line can carry in one argument, with room to spare
ALL_PROMPT_BYTES = 1_000_000  # and in all of them together
SMALL_BYTES = 600_000_000  # of weights on disk: the checks of a short prompt take a minute or two on a CPU


def is_small(model: str) -> bool:
    """Return whether a model is known to have few weights, so that a capture of it is judged by default: it is packaged
    or on this machine.
    """
    if model in PACKAGED:
        return PACKAGED[model].wheel_bytes <= SMALL_BYTES
    with suppress(OSError, ValueError, RuntimeError):
        path = ROOT / Path(model).expanduser()
        files = [path] if path.is_file() else [*path.glob("*.safetensors"), *path.glob("*.gguf"), *path.glob("*.bin")]
        return 0 < sum(file.stat().st_size for file in files) <= SMALL_BYTES
    return False


@dataclass(frozen=True)
class CaptureForm:
    """One state of the form: what is asked for, and the file of prompts that was dropped in place of its texts.
    carried: the file in which the prompts reach the capture; None where they are typed.
    """

    request: CaptureRequest
    file: PromptFile | None = None
    carried: PromptFile | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "carried", self.file or _too_long_to_type(self.request.prompts))

    @property
    def missing(self) -> str | None:
        """Sentence on the first thing that has yet to be filled in; None where there is nothing."""
        asked = self.request
        if not asked.model:
            return "Choose a model."
        if (packaged := PACKAGED.get(asked.model)) is not None and not is_here(packaged):
            return f"Get {packaged.title} first."
        if self.file is None and not asked.prompts:
            return "Write at least one prompt, or drop a file of them."
        if not asked.reference:
            return "Choose a reference path."
        if not asked.variants and not asked.sweeps and asked.repeat == 1:
            return "Choose at least one variant or a sweep, or call the reference several times."
        return None

    @property
    def title(self) -> str:
        """Title of the job in the list."""
        asked = self.request
        if asked.name:
            return asked.name
        against = ", ".join([*asked.variants, *asked.sweeps])
        title = f"{wording.model_name(asked.model)}: {asked.reference}" + (f" against {against}" if against else "")
        title += f", {asked.repeat} calls" if asked.repeat > 1 else ""
        return title + (f", {asked.tokens} tokens generated" if asked.tokens else "")

    def arguments(self, carried: Path | None = None) -> list[str]:
        """Arguments of `ulpscope`; without `carried` the place of a carried file is somebody else's to say."""
        return self._asked(str(carried) if carried else None).arguments()

    @property
    def typed(self) -> str:
        """The command a person would type, with a file of their own."""
        return self._asked(self.carried.name if self.carried else None).typed()

    def _asked(self, file: str | None) -> CaptureRequest:
        texts = () if self.carried else self.request.prompts
        return replace(self.request, prompts=texts, prompt_lists=(file,) if file else ())


def split_prompts(text: str) -> tuple[str, ...]:
    """Split a text into prompts at lines of three dashes; those of blanks alone are none."""
    parts = [part.strip("\n") for part in ("\n" + text.replace("\r\n", "\n") + "\n").split("\n---\n")]
    return tuple(part for part in parts if part.strip())


def _too_long_to_type(prompts: tuple[str, ...]) -> PromptFile | None:
    """File of the prompts where an operating system would not take them as arguments, else None."""
    lengths = [len(prompt.encode("utf-8", "replace")) for prompt in prompts]
    if max(lengths, default=0) <= PROMPT_BYTES and sum(lengths) <= ALL_PROMPT_BYTES:
        return None
    lines = "".join(json.dumps({"text": prompt}) + "\n" for prompt in prompts)
    return PromptFile("prompts.jsonl", lines.encode())
