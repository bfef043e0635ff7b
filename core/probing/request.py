"""Request for a probe: what `probe` and the Probe page fill in, and a run keeps. Nothing here speaks HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from ..capture_request import Request, asked
from ..text import shown
from .plan import DEFAULT_TESTS, Plan, Prompt, base_of, parsed_tests

KEY_VARIABLE = "ULPSCOPE_PROBE_KEY"
_LONGEST_PROMPT = 2000  # characters of each, in the command that a run keeps


@dataclass(frozen=True, kw_only=True)
class ProbeRequest(Request):
    """One probe. Of the key it has only the name of the variable that holds it."""

    command: ClassVar[str] = "probe"

    url: str = asked("The server, as http://127.0.0.1:8000.", is_argument=True)
    prompts: tuple[str, ...] = asked("A prompt; several times for several.", (), option="--prompt")
    prompt_files: tuple[str, ...] = asked("A text file that is one prompt.", (), option="--prompt-file")
    prompt_lists: tuple[str, ...] = asked("A file of prompts, one a line, or JSON lines.", (), option="--prompts")
    model: str = asked("The model to ask for, where the server has several.", "")
    tests: str = asked("Of rerun, warm, load:N, walk, echo; docs/probe.md says what each does.", DEFAULT_TESTS)
    against: str | None = asked("A second server that gets the same prompts: after an upgrade, in fp8.", None)
    against_model: str = asked("The model to ask the second server for. Default: --model.", "")
    top: int = asked("Log-probabilities a position.", 20)
    tokens: int = asked("Tokens to generate for each prompt, greedily.", 32)
    max_requests: int = asked("End after so many requests.", 2000, lowest=1)
    max_minutes: float = asked("End after so many minutes.", 30.0, lowest=0.01)
    key_variable: str = asked(
        "The environment variable that holds the key, sent as Bearer and never stored.", KEY_VARIABLE
    )
    name: str | None = asked("What to call the run. Default: the server and its model.", None)

    def __post_init__(self) -> None:
        """Addresses lose the path of an endpoint; UsageError for what is none."""
        object.__setattr__(self, "url", base_of(self.url))
        if self.against is not None:
            object.__setattr__(self, "against", base_of(self.against))

    @property
    def addresses(self) -> list[str]:
        """Addresses of the servers, one or two."""
        return [address for address in (self.url, self.against) if address is not None]

    def plan(self, prompts: Sequence[Prompt]) -> Plan:
        """Plan of the probe of these prompts: texts or token ids. UsageError for what cannot be asked."""
        names, load = parsed_tests(self.tests)
        return Plan(tuple(prompts), names, load, self.tokens, self.top, is_against=self.against is not None)

    def to_store(self) -> ProbeRequest:
        """The request as a run keeps it: the beginnings of its prompts, files by their names."""
        return replace(
            self,
            prompts=tuple(shown(prompt, _LONGEST_PROMPT) for prompt in self.prompts),
            prompt_files=tuple(Path(path).name for path in self.prompt_files),
            prompt_lists=tuple(Path(path).name for path in self.prompt_lists),
        )
