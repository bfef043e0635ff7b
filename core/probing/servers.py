"""Servers for a probe: a table of kinds, and their detection.

Endpoints and fields as in the engines' sources and documentation: vLLM 0.32, SGLang 0.5,
llama.cpp's tools/server, Ollama's docs/api.md.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import msgspec

from ..errors import DumpError
from ..responses.entries import count_of, tokens_of
from ..responses.formats import first_value, generated_ids, read_payload
from ..responses.records import Response
from ..text import clean
from .client import Client, ProbeError
from .plan import Prompt

Json = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class Ask:
    """One request. prompt: a text or token ids; tokens: to generate, greedily; top: values per row,
    0 for none.

    is_warm: the prompt may be read from a cache. salt: unique to a cold request. rows: include the
    prompt's own rows. is_filler: sent only to load the server.
    temperature: 0 but for an answer that nothing reads.
    """

    prompt: Prompt
    tokens: int
    top: int
    is_warm: bool = False
    salt: str = ""
    rows: bool = False
    is_filler: bool = False
    temperature: int = 0

    @property
    def words(self) -> str | list[int]:
        return list(self.prompt) if isinstance(self.prompt, tuple) else self.prompt

    @property
    def filler(self) -> Json:
        return {"ignore_eos": True} if self.is_filler else {}


@dataclass(frozen=True)
class Kind:
    """A kind of server. body: of a request to `path`; tokenize: body of a request to /tokenize;
    forget: path and body of the request that clears its caches; way_to_tell: how to make it report
    its cache hits.
    """

    name: str
    path: str
    body: Callable[[Ask, str], Json]
    way_to_be_cold: str = ""
    way_to_tell: str = ""
    takes_ids: bool = False
    has_prompt_rows: bool = False
    tokenize: Callable[[str, str], Json] | None = None
    forget: tuple[str, Callable[[str], Json]] | None = None


def _openai(ask: Ask, model: str) -> Json:
    about = {"model": model} if model else {}
    return about | {"max_tokens": ask.tokens, "temperature": ask.temperature}


def _chat(ask: Ask, model: str) -> Json:
    return _openai(ask, model) | {
        "messages": [{"role": "user", "content": ask.prompt}],
        "logprobs": True,
        "top_logprobs": ask.top,
    }


def _completions(ask: Ask, model: str) -> Json:
    return _openai(ask, model) | {"prompt": ask.words, "logprobs": ask.top or None}


def _vllm(ask: Ask, model: str) -> Json:
    rows = {"prompt_logprobs": ask.top} if ask.rows else {}
    own = {
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "cache_salt": ask.salt or "warm",
    }
    return _completions(ask, model) | own | rows | ask.filler


def _llamacpp(ask: Ask, _: str) -> Json:
    return {
        "prompt": ask.words,
        "temperature": ask.temperature,
        "n_predict": ask.tokens,
        "n_probs": ask.top,
        "cache_prompt": ask.is_warm,
        "return_tokens": True,
    } | ask.filler


def _sglang(ask: Ask, _: str) -> Json:
    return {
        "input_ids" if isinstance(ask.prompt, tuple) else "text": ask.words,
        "sampling_params": {"temperature": ask.temperature, "max_new_tokens": ask.tokens}
        | ask.filler,
        "return_logprob": ask.top > 0,
        "top_logprobs_num": ask.top,
        "logprob_start_len": 0 if ask.rows else -1,
        "return_text_in_logprobs": True,
    }


def _ollama(ask: Ask, model: str) -> Json:
    return {
        "model": model,
        "prompt": ask.prompt,
        "raw": True,
        "stream": False,
        "options": {"temperature": ask.temperature, "num_predict": ask.tokens},
        "logprobs": True,
        "top_logprobs": min(ask.top, 20),
    }


def _tokenize(text: str, model: str) -> Json:
    return {"model": model, "prompt": text}


OPENAI = Kind("OpenAI-compatible", "/v1/completions", _completions)
CHAT = Kind("OpenAI-compatible", "/v1/chat/completions", _chat)
LLAMACPP = Kind(
    "llama.cpp",
    "/completion",
    _llamacpp,
    way_to_be_cold="cache_prompt: false",
    takes_ids=True,
    tokenize=lambda text, _: {"content": text, "add_special": True},
)
VLLM = Kind(
    "vLLM",
    "/v1/completions",
    _vllm,
    way_to_be_cold="a unique cache_salt for every cold request",
    way_to_tell=" It reports them with --enable-prompt-tokens-details.",
    takes_ids=True,
    has_prompt_rows=True,
    tokenize=_tokenize,
)
SGLANG = Kind(
    "SGLang",
    "/generate",
    _sglang,
    way_to_be_cold="POST /flush_cache before every cold request",
    takes_ids=True,
    has_prompt_rows=True,
    tokenize=_tokenize,
    forget=("/flush_cache", lambda _: {}),
)
OLLAMA = Kind(
    "Ollama",
    "/api/generate",
    _ollama,
    way_to_be_cold="the model is unloaded (keep_alive: 0) before every cold request",
    forget=("/api/generate", lambda model: {"model": model, "keep_alive": 0}),
)


class _Adapter(msgspec.Struct):
    id: int
    scale: float


@dataclass(frozen=True)
class Server:
    """One server. model: its name in requests; vocab: its size, if reported; other_adapter: fields
    of a request to another adapter, empty if the server tells of none.
    """

    client: Client = field(repr=False)
    kind: Kind
    version: str = ""
    model: str = ""
    vocab: int | None = None
    other_adapter: Json = field(default_factory=dict)

    def describe(self) -> str:
        """Return name, version and model."""
        name = f"{self.kind.name} {self.version}".strip()
        return f"{name}, model {self.model}" if self.model else name

    def tokenize(self, text: str) -> tuple[int, ...] | None:
        """Return the token ids of a text in this server's prompts, if it reports them."""
        if self.kind.tokenize is None:
            return None
        try:
            answer = self.client.post("/tokenize", self.kind.tokenize(text, self.model))
            return tokens_of(first_value(answer, list, "tokens"), "tokens", "/tokenize") or None
        except (ProbeError, DumpError):
            # an older server has no such endpoint
            return None

    def forget(self) -> None:
        """Clear the caches, if there is a request for it."""
        if self.kind.forget is not None:
            path, body = self.kind.forget
            self.client.post_bytes(path, body(self.model))

    def send(self, ask: Ask, fields: Json, *, is_canceled: bool = False) -> None:
        """Send one request of which no answer is read. fields: instead of its own; is_canceled:
        drop its stream when it begins.
        """
        self.client.budget.take()
        body = self.kind.body(ask, self.model) | fields
        send = self.client.drop_stream if is_canceled else self.client.post_bytes
        send(self.kind.path, body)

    def generate(self, ask: Ask) -> tuple[int, ...]:
        """Send one request without log-probabilities, and return the generated token ids."""
        return self._read(replace(ask, top=0), generated_ids)

    def ask(self, ask: Ask) -> Response:
        """Send one request and read its answer. ProbeError if it has no log-probabilities."""
        responses = self._read(ask, read_payload)
        if not responses:
            raise ProbeError(f"{self.kind.path}: the server sends no answer.")
        return replace(responses[0], vocab=self.vocab)

    def _read(self, ask: Ask, read: Callable[[Any, str, Json], T]) -> T:
        self.client.budget.take()
        path = self.kind.path
        body = self.kind.body(ask, self.model)
        try:
            return read(self.client.post(path, body), path, body)
        except (DumpError, RecursionError) as error:
            raise ProbeError(str(error)) from None


def find_server(client: Client, model: str = "") -> Server:
    """Detect the server and its model. ProbeError if it is unknown, or --model is needed."""

    def section(path: str) -> Json:
        answer = client.get(path)
        return answer if isinstance(answer, dict) else {}

    def server(kind: Kind, version: object, own: list[str], vocab: int | None = None) -> Server:
        name = clean(_model(model, own), 200)
        return Server(client, kind, clean(version, 60), name, vocab)

    data = first_value(section("/v1/models"), list, "data") or []
    models = [one for one in data if isinstance(one, dict)]
    names = [str(one.get("id", "")) for one in models]
    owners = {str(one.get("owned_by")) for one in models}
    props = section("/props")
    version = section("/version")
    if "default_generation_settings" in props or "build_info" in props:
        build = str(props.get("build_info") or "")
        path = names[0] if names else str(props.get("model_path") or "")
        one = server(
            LLAMACPP,
            "" if "unknown" in build else build,
            [path.rpartition("/")[2]],
            count_of(first_value(next(iter(models), {}), int, "meta.n_vocab")),
        )
        return replace(one, other_adapter=_other_scales(client))
    about = section("/server_info") or section("/get_server_info")
    is_named = {"mem_fraction_static", "tokenizer_path"} & about.keys()
    if is_named or (about and "sglang" in owners):
        own = names or [str(about.get("model_path", ""))]
        return server(SGLANG, about.get("version", ""), own)
    if "version" in (about := section("/api/version")):
        return server(OLLAMA, about["version"], names)
    if "version" in version and (owners == {"vllm"} or not names):
        one = server(VLLM, version["version"], names)
        others = ({"model": name} for name in names if name != one.model)
        return replace(one, other_adapter=next(others, {}))
    if not (names or model):
        raise ProbeError(
            f"{client.url}: unknown server; /v1/models, /props, /server_info and /api/version name"
            " no engine.",
        )
    reasons = []
    # completions come first, chat if they have no log-probabilities
    for kind in (OPENAI, CHAT):
        try:
            one = Server(client, kind, "", _model(model, names))
            one.ask(Ask("Hello", 1, 1))
            return one
        except ProbeError as error:
            reasons.append(str(error))
    raise ProbeError(f"neither completions nor chat give log-probabilities: {' '.join(reasons)}")


def _other_scales(client: Client) -> Json:
    """Return the fields of a request that turns on llama.cpp's adapters that are off, and the
    others off.
    """
    try:
        adapters = msgspec.convert(client.get("/lora-adapters"), list[_Adapter])
    except msgspec.ValidationError:
        return {}
    scales = [{"id": each.id, "scale": float(not each.scale)} for each in adapters]
    return {"lora": scales} if scales else {}


def _model(model: str, names: list[str]) -> str:
    if model or len(names) <= 1:
        return model or "".join(names)
    choices = ", ".join(clean(name, 60) for name in names[:5]) + (", ..." if len(names) > 5 else "")
    raise ProbeError(f"the server has {len(names)} models ({choices}); choose one by --model.")
