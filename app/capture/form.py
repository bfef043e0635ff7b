"""Values of the Capture tab's form and their command line, without Streamlit."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from app.shell import wording
from app.shell.jobs import PromptFile, queue_of
from core.capture_request import CaptureRequest
from core.errors import UsageError
from core.packaged_models import PACKAGED, is_here

PROMPT_BYTES = 100_000  # that a command line can carry in its arguments, with room to spare


@dataclass(frozen=True)
class CaptureForm:
    """One state of the form: the request, and the file of prompts that replaces its texts."""

    request: CaptureRequest
    file: PromptFile | None = None

    @property
    def prompt_file(self) -> PromptFile | None:
        """The file in which the prompts reach the capture; None if they fit into its arguments."""
        prompts = self.request.prompts
        if self.file is not None or sum(len(prompt.encode("utf-8", "replace")) for prompt in prompts) <= PROMPT_BYTES:
            return self.file
        return PromptFile("prompts.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in prompts).encode())

    @property
    def missing(self) -> str | None:
        """Sentence on the first field that is empty or wrong; None if there is none."""
        request = self.request
        if not request.model:
            return "Choose a model."
        if (packaged := PACKAGED.get(request.model)) is not None and not is_here(packaged):
            return f"Get {packaged.title} first."
        if self.file is None and not request.prompts:
            return "Write at least one prompt, or drop a prompt file."
        if not request.reference:
            return "Choose a reference path."
        if not request.variants and not request.sweeps and request.repeat == 1:
            return "Choose at least one variant or a sweep, or repeat the reference."
        try:
            queue_of(request.device)
        except UsageError as error:
            return str(error)
        return None

    @property
    def title(self) -> str:
        """Title of the job in the list."""
        request = self.request
        against = ", ".join([*request.variants, *request.sweeps])
        title = f"{wording.model_name(request.model)}: {request.reference}" + (f" vs {against}" if against else "")
        title += f", {request.repeat} calls" if request.repeat > 1 else ""
        return request.name or title + (f", {request.tokens} tokens generated" if request.tokens else "")

    def arguments(self) -> list[str]:
        """Arguments of `ulpscope`; the caller adds the place of a carried file."""
        return self._request(None).arguments()

    @property
    def typed(self) -> str:
        """The command a person would type, with a file of their own."""
        return self._request(self.prompt_file.name if self.prompt_file else None).typed()

    def _request(self, file: str | None) -> CaptureRequest:
        texts = () if self.prompt_file else self.request.prompts
        return replace(self.request, prompts=texts, prompt_lists=(file,) if file else ())


def split_prompts(text: str) -> tuple[str, ...]:
    """Split a text into prompts at lines of three dashes; those of blanks alone are none."""
    parts = [part.strip("\n") for part in ("\n" + text.replace("\r\n", "\n") + "\n").split("\n---\n")]
    return tuple(part for part in parts if part.strip())
