"""A proxy in front of a llama.cpp server that plants a fault of its caches: what the server answers
to another prompt than the one that was sent, as if it had read wrong keys and values.

What the server answers is kept, so that a second probe computes nothing.
"""

import json
import threading
from contextlib import contextmanager, suppress

import httpx2 as httpx
import numpy as np

from core.judging.axes import neighbors_of
from tests.core.probing.odd_server import asked_of, listening, reply

BLOCK = 16
ENTRY = {"filename": "entry"}


class Proxy:
    """What a fault may know. previous: requests before it, the last one last; prompts:
    in the order in which they first came; fillers: requests that loaded the server so far;
    entries: folder to which the server saves entries of its cache.
    """

    def __init__(self, address, answers, entries):
        self.upstream = httpx.Client(base_url=address, timeout=60.0)
        self.answers = answers
        self.entries = entries
        self.fault = lambda _proxy, _body: None
        self.previous = []
        self.prompts = []
        self.fillers = 0
        self._lock = threading.Lock()

    def answer(self, body):
        """The server's own answer."""
        body = {**body, "stream": False}
        key = json.dumps(body, sort_keys=True)
        if key not in self.answers:
            answer = self.upstream.post("/completion", json=body).json()
            # the first of a prompt may not have read the cache yet
            if body["cache_prompt"] and not answer["timings"]["cache_n"]:
                answer = self.upstream.post("/completion", json=body).json()
            self.answers[key] = answer
        return self.answers[key]

    def handle(self, handler):
        body = asked_of(handler)
        if handler.path != "/completion":
            known = f"{handler.command} {handler.path} {body}"
            if known not in self.answers:
                sent = self.upstream.request(handler.command, handler.path, json=body)
                self.answers[known] = sent.status_code, sent.content
            status, content = self.answers[known]
            reply(handler, content, status)
            return
        is_filler = isinstance(body["prompt"], str)
        self.fillers += is_filler
        try:
            planted = None if is_filler else self.fault(self, body)
            answer = self.answer(body)
            if planted is not None:
                answer = {**planted, "timings": answer["timings"]}
        finally:
            with self._lock:
                if not is_filler:
                    self.previous.append(body)
        # a stream that is dropped
        with suppress(BrokenPipeError, ConnectionResetError):
            reply(handler, {**answer, "tokens_evaluated": len(body["prompt"])})

    def with_prompt(self, body, prompt):
        return self.answer(
            {
                **body,
                "prompt": prompt,
                "cache_prompt": False,
            }
        )

    def with_wrong_block(self, body):
        """The answer if the first block has other tokens."""
        prompt = body["prompt"]
        end = min(BLOCK, len(prompt) // 2)
        wrong = [(token + 7) % 4000 for token in prompt[:end]]
        return self.with_prompt(body, wrong + prompt[end:])

    def entry(self, prompt):
        """What the server's cache has of a prompt: its tokens, and its keys and values."""
        body = {
            "prompt": prompt,
            "n_predict": 1,
            "cache_prompt": False,
            "id_slot": 0,
        }
        self.upstream.post("/completion", json=body).raise_for_status()
        self.upstream.post("/slots/0?action=save", json=ENTRY).raise_for_status()
        content = (self.entries / ENTRY["filename"]).read_bytes()
        # of a header of 24 bytes the last 4 count the tokens, 4 bytes each
        end = 24 + 4 * int.from_bytes(content[20:24], "little")
        return content[:end], content[end:]

    def read_entry(self, body, tokens, state):
        """The server's own answer, with this in its cache."""
        (self.entries / ENTRY["filename"]).write_bytes(tokens + state)
        self.upstream.post("/slots/0?action=restore", json=ENTRY).raise_for_status()
        return self.upstream.post("/completion", json={**body, "id_slot": 0}).json()


@contextmanager
def planted(address, answers, fault=None, entries=None):
    """The address of a proxy with this fault."""
    proxy = Proxy(address, answers, entries)
    proxy.fault = fault or proxy.fault
    with listening(proxy.handle) as own:
        yield own


def is_hit(proxy, body):
    prompts = [one["prompt"] for one in proxy.previous]
    return body["cache_prompt"] and body["prompt"] in prompts


def another_block(proxy, body):
    """Every hit reads a block of another request."""
    return proxy.with_wrong_block(body) if is_hit(proxy, body) else None


def long_hits(proxy, body):
    return another_block(proxy, body) if len(body["prompt"]) > 32 else None


def page_edges(proxy, body):
    return another_block(proxy, body) if len(body["prompt"]) % 16 == 1 else None


def own_entry(proxy, body):
    """No fault: the entry is restored as it was saved."""
    if not is_hit(proxy, body):
        return None
    return proxy.read_entry(body, *proxy.entry(body["prompt"]))


def another_entry(proxy, body):
    """In the server's own cache the prompt has keys and values of another request."""
    if not is_hit(proxy, body):
        return None
    tokens, _ = proxy.entry(body["prompt"])
    _, state = proxy.entry([(token + 7) % 4000 for token in body["prompt"]])
    return proxy.read_entry(body, tokens, state)


def one_off(proxy, body):
    """In the server's own cache every position of the prompt is one too large."""
    if not is_hit(proxy, body):
        return None
    tokens, state = proxy.entry(body["prompt"])
    # 8 bytes, the number of cells, then of each its position, 1 and a sequence
    cells = int.from_bytes(state[8:12], "little")
    head = np.frombuffer(state, np.int32, 3 + 3 * cells).copy()
    head[3::3] += 1
    return proxy.read_entry(body, tokens, head.tobytes() + state[head.nbytes :])


def stale(proxy, body):
    """A hit after another prompt has taken its place reads what that one wrote."""
    is_evicted = bool(proxy.previous) and proxy.previous[-1]["prompt"] != body["prompt"]
    return another_block(proxy, body) if is_evicted else None


def not_written(proxy, body):
    """A prompt of 1 + 4 tokens writes no state: what is generated reads its last token alone."""
    prompt = body["prompt"]
    if len(prompt) != 5 or body["n_predict"] == 1:
        return None
    first = proxy.with_prompt({**body, "n_predict": 1}, prompt)
    token = first["completion_probabilities"][0]["id"]
    rest = proxy.with_prompt({**body, "n_predict": body["n_predict"] - 1}, [prompt[-1], token])
    rows = first["completion_probabilities"] + rest["completion_probabilities"]
    tokens = first["tokens"] + rest["tokens"]
    return {**rest, "completion_probabilities": rows, "tokens": tokens}


def previous_of(proxy, body):
    """The request before, if it is of the same prompt."""
    last = proxy.previous[-1] if proxy.previous else body
    return last if last["prompt"] == body["prompt"] else {}


def sampler_stays(proxy, body):
    """The request after a sampled one is sampled too."""
    was_sampled = previous_of(proxy, body).get("temperature")
    if not was_sampled or body["temperature"]:
        return None
    return proxy.answer(
        {
            **body,
            "temperature": 1,
            "seed": 3,
        }
    )


def other_sampler(proxy, body):
    """Without log-probabilities another code path chooses the tokens, and reads a wrong block."""
    return proxy.with_wrong_block(body) if not body["n_probs"] else None


def leak(proxy, body):
    """While four requests or more are in flight, a block is another one's."""
    if body["prompt"] not in proxy.prompts:
        proxy.prompts.append(body["prompt"])
    number = proxy.prompts.index(body["prompt"])
    is_loaded = proxy.fillers > 0 and not body["cache_prompt"] and neighbors_of(number) >= 4
    return proxy.with_wrong_block(body) if is_loaded else None


def half_written(proxy, body):
    """A canceled request leaves a wrong block."""
    was_stream = previous_of(proxy, body).get("stream")
    return proxy.with_wrong_block(body) if was_stream else None
