"""Servers as a probe sees them: what each kind can give, its way to be cold, and how it is asked.

Endpoints and fields as in the engines' sources and documentation: vLLM 0.32, SGLang 0.5, llama.cpp's tools/server,
Ollama's docs/api.md, text-generation-inference 3.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from ..errors import DumpError
from ..runs.topk.payloads.entries import count_of
from ..runs.topk.payloads.recognise import read_payload
from ..runs.topk.records import Response
from ..text import shown
from .client import Client, ProbeError
from .plan import Prompt

COLD, WARM = "cold", "warm"


@dataclass(frozen=True)
class Ask:
    """One request. prompt: a text or token ids; tokens: to generate, greedily; top: values a row.

    cache: COLD, nothing of the prompt is read from a cache; WARM, it may be. salt: words that no other cold request
    has. rows: the prompt's own rows are asked for too. is_filler: sent only to load the server.
    """

    prompt: Prompt
    tokens: int
    top: int
    cache: str = COLD
    salt: str = ""
    rows: bool = False
    is_filler: bool = False


@dataclass(frozen=True)
class Server:
    """An OpenAI-compatible server of which nothing more is known.

    model: as its requests name it. vocab: its tokens, where it says so. is_chat: it is asked by chat, for it has no
    completions with log-probabilities.
    way_to_be_cold: a sentence, '' where none is known. takes_ids: prompts may be token ids. has_prompt_rows: a prompt's
    own rows can be asked for.
    """

    client: Client = field(repr=False)
    version: str = ""
    model: str = ""
    vocab: int | None = None
    is_chat: bool = False

    kind: ClassVar[str] = "OpenAI-compatible"
    way_to_be_cold: ClassVar[str] = ""
    way_to_tell: ClassVar[str] = ""  # how it is brought to say what it read from its cache: a sentence after a blank
    takes_ids: ClassVar[bool] = False
    has_prompt_rows: ClassVar[bool] = False

    def told(self) -> str:
        """Name, version and model, in a few words."""
        of = f", model {self.model}" if self.model else ""
        return f"{self.kind}{' ' + self.version if self.version else ''}{of}"

    def tokenized(self, text: str) -> tuple[int, ...] | None:
        """Token ids of a text as this server's prompts have them; None where it does not say."""
        del text
        return None

    def forget(self) -> None:
        """Empty the caches, where that is a request of its own."""

    def ask(self, asked: Ask) -> Response:
        """Send one request and read its answer. ProbeError where it has no log-probabilities."""
        self.client.budget.take()
        path, body = self.request(asked)
        try:
            found = read_payload(self.client.post(path, body), path, body)
        except DumpError as error:
            raise ProbeError(str(error)) from None
        if not found:
            raise ProbeError(f"{path}: the server sends no answer.")
        return self.completed(found[0], asked)

    def completed(self, response: Response, asked: Ask) -> Response:
        """The response with what is known beside it: how many values a row were asked for, and the vocabulary."""
        asked_for = asked.top if response.asked is None else response.asked
        return replace(response, asked=asked_for, vocab=self.vocab if response.vocab is None else response.vocab)

    def request(self, asked: Ask) -> tuple[str, dict[str, Any]]:
        """Path and body of a request."""
        if self.is_chat:
            messages = [{"role": "user", "content": asked.prompt}]
            body = {"messages": messages, "max_tokens": asked.tokens, "logprobs": True, "top_logprobs": asked.top}
            return "/v1/chat/completions", self._common(body)
        prompt = list(asked.prompt) if isinstance(asked.prompt, tuple) else asked.prompt
        return "/v1/completions", self._common({"prompt": prompt, "max_tokens": asked.tokens, "logprobs": asked.top})

    def _common(self, body: dict[str, Any]) -> dict[str, Any]:
        return ({"model": self.model} if self.model else {}) | body | {"temperature": 0}


@dataclass(frozen=True)
class LlamaCpp(Server):
    """llama.cpp's own endpoint, which says token ids, and how much of the prompt came from a cache."""

    kind: ClassVar[str] = "llama.cpp"
    way_to_be_cold: ClassVar[str] = "cache_prompt: false"
    takes_ids: ClassVar[bool] = True

    def tokenized(self, text: str) -> tuple[int, ...] | None:
        return _ids(self.client.post("/tokenize", {"content": text, "add_special": True}), "tokens")

    def request(self, asked: Ask) -> tuple[str, dict[str, Any]]:
        prompt = list(asked.prompt) if isinstance(asked.prompt, tuple) else asked.prompt
        body = {
            "prompt": prompt,
            "n_predict": asked.tokens,
            "n_probs": asked.top,
            "temperature": 0,
            "cache_prompt": asked.cache == WARM,
            "return_tokens": True,
        }
        return "/completion", body | ({"ignore_eos": True} if asked.is_filler else {})


@dataclass(frozen=True)
class VLLM(Server):
    """vLLM's completions, which take a salt for the prefix cache and say token ids."""

    kind: ClassVar[str] = "vLLM"
    way_to_be_cold: ClassVar[str] = "a cache_salt of its own for every cold request"
    way_to_tell: ClassVar[str] = " It does with --enable-prompt-tokens-details."
    takes_ids: ClassVar[bool] = True
    has_prompt_rows: ClassVar[bool] = True

    def tokenized(self, text: str) -> tuple[int, ...] | None:
        return _ids(self.client.post("/tokenize", {"model": self.model, "prompt": text}), "tokens")

    def request(self, asked: Ask) -> tuple[str, dict[str, Any]]:
        path, body = super().request(asked)
        body |= {"return_token_ids": True, "return_tokens_as_token_ids": True, "cache_salt": asked.salt or "warm"}
        if asked.rows:
            body["prompt_logprobs"] = asked.top
        return path, body | ({"ignore_eos": True} if asked.is_filler else {})


@dataclass(frozen=True)
class SGLang(Server):
    """SGLang's `/generate`, with triples of log-probability, id and text."""

    kind: ClassVar[str] = "SGLang"
    way_to_be_cold: ClassVar[str] = "POST /flush_cache before every cold request"
    takes_ids: ClassVar[bool] = True
    has_prompt_rows: ClassVar[bool] = True

    def tokenized(self, text: str) -> tuple[int, ...] | None:
        try:
            return _ids(self.client.post("/tokenize", {"model": self.model, "prompt": text}), "tokens")
        except ProbeError:  # older servers have no such endpoint
            return None

    def forget(self) -> None:
        self.client.post_bytes("/flush_cache", {})

    def request(self, asked: Ask) -> tuple[str, dict[str, Any]]:
        prompt = {"input_ids": list(asked.prompt)} if isinstance(asked.prompt, tuple) else {"text": asked.prompt}
        sampling = {"temperature": 0, "max_new_tokens": asked.tokens} | (
            {"ignore_eos": True} if asked.is_filler else {}
        )
        return "/generate", {
            **prompt,
            "sampling_params": sampling,
            "return_logprob": True,
            "top_logprobs_num": asked.top,
            "logprob_start_len": 0 if asked.rows else -1,
            "return_text_in_logprobs": True,
        }


@dataclass(frozen=True)
class Ollama(Server):
    """Ollama: texts and no token ids; a model that is unloaded has no cache."""

    kind: ClassVar[str] = "Ollama"
    way_to_be_cold: ClassVar[str] = "the model is unloaded (keep_alive: 0) before every cold request"

    def forget(self) -> None:
        self.client.post("/api/generate", {"model": self.model, "keep_alive": 0})

    def request(self, asked: Ask) -> tuple[str, dict[str, Any]]:
        options = {"temperature": 0, "num_predict": asked.tokens}
        return "/api/generate", {
            "model": self.model,
            "prompt": asked.prompt,
            "raw": True,
            "stream": False,
            "options": options,
            "logprobs": True,
            "top_logprobs": min(asked.top, 20),
        }


@dataclass(frozen=True)
class TGI(Server):
    """Hugging Face's text-generation-inference."""

    kind: ClassVar[str] = "TGI"

    def request(self, asked: Ask) -> tuple[str, dict[str, Any]]:
        parameters = {
            "max_new_tokens": asked.tokens,
            "do_sample": False,
            "details": True,
            "top_n_tokens": min(asked.top, 5),
        }
        return "/generate", {"inputs": asked.prompt, "parameters": parameters | {"decoder_input_details": asked.rows}}


def _ids(answer: object, name: str) -> tuple[int, ...] | None:
    """Token ids out of an answer of a tokenizer."""
    found = answer.get(name) if isinstance(answer, dict) else None
    if not isinstance(found, list) or not found or not all(type(token) is int for token in found):
        return None
    return tuple(found)


def find_server(client: Client, model: str = "") -> Server:
    """Find out what the server is, and the model that it serves. ProbeError where it is none that is known, or serves
    several models and none was named.
    """
    listed = client.get("/v1/models")
    models = (
        [one for one in (listed or {}).get("data") or [] if isinstance(one, dict)] if isinstance(listed, dict) else []
    )
    names = [str(one.get("id", "")) for one in models]
    owners = {one.get("owned_by") for one in models}
    props, version = client.get("/props"), client.get("/version")
    if isinstance(props, dict) and ("default_generation_settings" in props or "build_info" in props):
        build, path = f"{props.get('build_info') or ''}", props.get("model_path")
        build = "" if "unknown" in build else build
        known = model or (names[0] if names else str(path or "")).rpartition("/")[2]
        meta = models[0].get("meta") if models else None
        return LlamaCpp(client, shown(build, 60), shown(known, 200), count_of((meta or {}).get("n_vocab")))
    told = client.get("/server_info") or client.get("/get_server_info")
    if isinstance(told, dict) and ("mem_fraction_static" in told or "sglang" in owners or "tokenizer_path" in told):
        return SGLang(
            client, shown(told.get("version", ""), 60), _model(model, names or [str(told.get("model_path", ""))])
        )
    said = client.get("/api/version")
    if isinstance(said, dict) and "version" in said:
        return Ollama(client, shown(said["version"], 60), _model(model, names))
    info = client.get("/info")
    if isinstance(info, dict) and "model_id" in info:
        return TGI(client, shown(info.get("version", ""), 60), shown(info["model_id"], 200))
    if isinstance(version, dict) and "version" in version and (owners == {"vllm"} or not names):
        return VLLM(client, shown(version["version"], 60), _model(model, names))
    if names or model:
        return _asked_as(Server(client, "", _model(model, names)))
    raise ProbeError(
        f"{client.url}: no server that is known here; /v1/models, /props, /server_info, /api/version and /info say"
        " nothing that an engine would."
    )


def _model(model: str, names: list[str]) -> str:
    if model or len(names) == 1:
        return model or names[0]
    if not names:
        return ""
    listed = ", ".join(shown(name, 60) for name in names[:5])
    raise ProbeError(
        f"the server has {len(names)} models ({listed}{', ...' if len(names) > 5 else ''}); name one as --model."
    )


def _asked_as(server: Server) -> Server:
    """By completions where these have log-probabilities, else by chat."""
    trial = Ask("Hello", 1, 1)
    reasons = []
    for one in (server, replace(server, is_chat=True)):
        try:
            one.ask(trial)
        except ProbeError as error:
            reasons.append(str(error))
        else:
            return one
    raise ProbeError(f"neither completions nor chat give log-probabilities: {' '.join(reasons)}")
