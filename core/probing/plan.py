"""Request for a probe and its plan: its tests, and the requests and tokens that they take.

Nothing is sent here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

from ..capture_request import Request, param
from ..errors import UsageError
from ..judging.axes import AXES, LENGTHS, TOKENS
from ..text import clean, plural

Prompt = str | tuple[int, ...]
RERUN, WARM, LOAD, WALK, ECHO = "rerun", "warm", "load", "walk", "echo"
STATE = "state"
MEANINGS = {
    RERUN: "the same request alone, twice",
    WARM: "with the prompt's prefix in the cache, twice, vs. cold",
    LOAD: "while N other requests are in flight, twice",
    WALK: "every prefix of a prompt as its own request, cold and warm",
    ECHO: "the generated tokens scored as a prompt",
    STATE: f"prefix cache and other state, along {len(AXES)} axes, at lengths around cache pages",
}
DEFAULT_TESTS = "rerun,warm,load:8"
MOST_LOAD = 64
FILLER_FACTOR = 2  # tokens of a load request, per token of a measured one
KEY_VARIABLE = "ULPSCOPE_PROBE_KEY"
# eight of them: fewer rows tell no temperature
WATCH_PROMPTS = (
    "x",
    "The capital of France is",
    "1, 1, 2, 3, 5, 8,",
    "Sehr geehrte Damen und Herren,",
    "def area(shape):\n",
    '{"name": "Ada", "born": ',
    "Q: How many legs has a spider?\nA:",
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the"
    " age of " * 8,
)
_LONGEST_PROMPT = 2000  # characters of each in the stored command
_CHARACTERS_A_TOKEN = 4.0  # estimate for a text without token ids


@dataclass(frozen=True)
class Plan:
    """Plan of a probe. prompts: texts or token ids; tokens: to generate for each; top: values per
    row.

    tests: names of MEANINGS; load: concurrent requests during a measured one. is_against: a second
    server gets the same requests.
    """

    prompts: tuple[Prompt, ...]
    tests: tuple[str, ...]
    load: int = 8
    tokens: int = 32
    top: int = 20
    is_against: bool = False

    def __post_init__(self) -> None:
        if not self.prompts:
            raise UsageError("a probe needs a prompt; give --prompt TEXT or --prompts FILE.")
        if not 1 <= self.tokens <= 4096:
            raise UsageError(f"--tokens {self.tokens}: expected 1 to 4,096.")
        if not 1 <= self.top <= 1 << 18:
            raise UsageError(f"--top {self.top}: expected 1 or more values per row.")
        if STATE in self.tests and self.is_against:
            raise UsageError("--tests state asks one server; remove --against, or state.")

    @property
    def requests(self) -> int:
        """Maximum of requests; for walks, estimated from the prompts' tokens."""
        return sum(self.requests_of(test) for test in ("", *self.tests)) * self.servers

    @property
    def servers(self) -> int:
        return 2 if self.is_against else 1

    def requests_of(self, test: str) -> int:
        """Return the requests of one test; '' is the reference request."""
        if test == WALK:
            return sum(2 * about_tokens(prompt) for prompt in self.prompts)
        if test == STATE:
            prompts = len(self.prompts) + len(LENGTHS)
            # the reference, a wrong block, and the axes
            return 2 * prompts + sum(axis.requests(prompts) for axis in AXES)
        return len(self.prompts) * {WARM: 3, LOAD: 2 * (self.load + 1)}.get(test, 1)

    @property
    def tokens_read(self) -> int:
        """Estimated prompt tokens that the servers read."""
        lengths = [about_tokens(prompt) for prompt in self.prompts]
        of_prompts = [test for test in ("", *self.tests) if test not in (WALK, STATE)]
        whole = sum(map(self.requests_of, of_prompts)) // len(lengths)
        walked = sum(length * (length + 1) for length in lengths) if WALK in self.tests else 0
        cases = [*lengths, *LENGTHS]
        of_state = self.requests_of(STATE) * sum(cases) // len(cases) * (STATE in self.tests)
        return (sum(lengths) * whole + walked + of_state) * self.servers

    @property
    def tokens_made(self) -> int:
        """Maximum of tokens that the servers generate."""
        # requests in flight are longer
        made = {WALK: 1, ECHO: 1, STATE: FILLER_FACTOR * TOKENS}
        count = sum(
            self.requests_of(test) * made.get(test, self.tokens) for test in ("", *self.tests)
        )
        if LOAD in self.tests:
            count += 2 * self.load * len(self.prompts) * self.tokens * (FILLER_FACTOR - 1)
        return count * self.servers


def parsed_tests(text: str) -> tuple[tuple[str, ...], int]:
    """Parse `rerun,warm,load:8` to (names, load). UsageError for an unknown name."""
    names = []
    load = 8
    for part in text.split(","):
        match = re.fullmatch(r"\s*([a-z]+)(?::(\d{1,4}))?\s*", part)
        name = match[1] if match else ""
        if match is None or name not in MEANINGS or (match[2] is not None and name != LOAD):
            raise UsageError(
                f"--tests '{clean(part.strip(), 40)}' is unknown; expected {', '.join(MEANINGS)},"
                " load as load:8.",
            )
        if match[2] is not None:
            load = int(match[2])
        if not 1 <= load <= MOST_LOAD:
            raise UsageError(f"--tests load:{load}: expected 1 to {MOST_LOAD} requests in flight.")
        names.append(name)
    return tuple(name for name in MEANINGS if name in names), load


def about_tokens(prompt: Prompt) -> int:
    """Return the tokens of a prompt: exact for ids, else by its characters."""
    if isinstance(prompt, tuple):
        return len(prompt)
    return max(1, round(len(prompt) / _CHARACTERS_A_TOKEN))


def costs(plan: Plan) -> list[str]:
    """Return the requests of the plan: a line per test and one for all."""
    meanings = {"": ("cold", "each prompt once, as the reference")}
    meanings |= {test: (test, MEANINGS[test]) for test in plan.tests}
    if LOAD in meanings:
        meanings[LOAD] = (
            f"load:{plan.load}",
            MEANINGS[LOAD].replace("N other", f"{plan.load} other"),
        )
    lines = [
        f"{name:>8}: {plural(plan.requests_of(test) * plan.servers, 'request'):>15}, {meaning}"
        for test, (name, meaning) in meanings.items()
    ]
    of = " to both servers together" if plan.is_against else ""
    tokens = f"about {plan.tokens_read:,} tokens to read, {plan.tokens_made:,} to generate"
    return [*lines, f"At most {plural(plan.requests, 'request')}{of}: {tokens}."]


def base_of(address: str) -> str:
    """Return a server's address without the path of an endpoint.

    UsageError if it is invalid or has a password.
    """
    # imported late: what speaks HTTP takes 0.2 s to load
    from httpx2 import URL, InvalidURL

    try:
        URL(address.strip())
        parts = urlsplit(address.strip())
        is_sound = (
            parts.scheme in ("http", "https")
            and parts.hostname
            # as it is looked up
            and parts.hostname.encode("idna")
            and (parts.port is None or parts.port > 0)
            and not (parts.username or parts.password or parts.query or parts.fragment)
        )
    except (ValueError, InvalidURL):
        is_sound = False
    if not is_sound:
        raise UsageError(
            f"'{clean(address.rpartition('@')[2])}' is not a server address; expected"
            " http://HOST:PORT, without user, query or fragment.",
        )
    # a pattern that begins with slashes takes minutes for thousands of them
    path = re.sub("(/v1)?(/(chat/)?completions)?$", "", parts.path.rstrip("/"))
    return f"{parts.scheme}://{parts.netloc}{path.rstrip('/')}"


@dataclass(frozen=True, kw_only=True)
class ProbeRequest(Request):
    """One probe, without its key."""

    command: ClassVar[str] = "probe"

    url: str = param("The server, as http://127.0.0.1:8000.", is_argument=True)
    prompts: tuple[str, ...] = param("A prompt; repeatable.", (), option="--prompt")
    prompt_files: tuple[str, ...] = param(
        "A text file that is one prompt.",
        (),
        option="--prompt-file",
    )
    prompt_lists: tuple[str, ...] = param(
        "A file of prompts, one per line, or JSON lines.",
        (),
        option="--prompts",
    )
    model: str = param("Model to request, if the server has several.", "")
    tests: str = param(
        "; ".join(f"{test}: {meaning}" for test, meaning in MEANINGS.items()) + ".",
        DEFAULT_TESTS,
    )
    against: str | None = param(
        "A second server to compare with, such as one after an upgrade.",
        None,
    )
    against_model: str = param("Model to request from the second server. Default: --model.", "")
    top: int = param("Top log-probabilities per position.", 20)
    tokens: int = param("Tokens to generate for each prompt, greedily.", 32)
    max_requests: int = param("Stop after this many requests; with --watch, of each round.", 2000)
    watch: str = param(
        "Compare the first token of each prompt with a baseline every 10m, 30s, 1h or 1d.",
        "",
    )
    name: str | None = param("Name of the run. Default: the server and its model.", None)

    def __post_init__(self) -> None:
        """Strip the path of an endpoint from addresses. UsageError for an invalid one."""
        object.__setattr__(self, "url", base_of(self.url))
        if self.against is not None:
            object.__setattr__(self, "against", base_of(self.against))
        if (
            self.watch
            and self.every
            and (self.against, self.tests, self.tokens) != (None, DEFAULT_TESTS, 32)
        ):
            raise UsageError(
                "--watch has its own requests; remove --against, --tests and --tokens.",
            )

    @property
    def every(self) -> float:
        """Seconds between two rounds of --watch. UsageError for no interval."""
        match = re.fullmatch(r"([1-9]\d{0,5})([smhd])", self.watch or "1d")
        if match is None:
            raise UsageError(
                f"--watch '{clean(self.watch, 40)}': expected an interval such as 30s, 10m, 1h"
                " or 1d.",
            )
        return int(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[match[2]]

    @property
    def addresses(self) -> list[str]:
        """Addresses of the servers, one or two."""
        return [address for address in (self.url, self.against) if address is not None]

    def plan(self, prompts: Sequence[Prompt]) -> Plan:
        """Return the plan for these prompts: texts or token ids. UsageError for invalid tests."""
        names, load = parsed_tests(self.tests)
        return Plan(
            tuple(prompts),
            names,
            load,
            self.tokens,
            self.top,
            is_against=self.against is not None,
        )

    def to_store(self) -> ProbeRequest:
        """Return the request to store: prompts shortened, files by their names."""
        return replace(
            self,
            prompts=tuple(clean(prompt, _LONGEST_PROMPT) for prompt in self.prompts),
            prompt_files=tuple(Path(path).name for path in self.prompt_files),
            prompt_lists=tuple(Path(path).name for path in self.prompt_lists),
        )
