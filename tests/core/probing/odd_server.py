"""An OpenAI-compatible server by hand, which behaves as it is told to: slow, refusing, cut off,
lying.
"""

import json
import socket
import threading
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MODELS = {
    "object": "list",
    "data": [
        {
            "id": "odd",
            "object": "model",
            "owned_by": "somebody",
        }
    ],
}


def completion(request, *, shift=0.0):
    """A completion of `max_tokens` tokens that depends on nothing but the prompt's length."""
    count = int(request.get("max_tokens", 1))
    tokens = [f" t{(len(request.get('prompt', '')) + step) % 7}" for step in range(count)]
    tops = [
        {
            token: -0.25 + shift,
            f"{token}'": -1.75,
            " other": -4.5,
        }
        for token in tokens
    ]
    logprobs = {
        "tokens": tokens,
        "token_logprobs": [-0.25 + shift] * count,
        "top_logprobs": tops,
        "text_offset": list(range(count)),
    }
    choice = {
        "index": 0,
        "text": "".join(tokens),
        "logprobs": logprobs,
        "finish_reason": "length",
    }
    return {
        "object": "text_completion",
        "model": "odd",
        "choices": [choice],
        "usage": {"prompt_tokens": 9},
    }


def reply(handler, answer, status=200, **headers):
    body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    handler.send_response(status)
    for name, value in {"Content-Length": str(len(body)), **headers}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)


class Odd:
    """What the server saw, and how it answers. acts: one a request to completions, the last one for
    all after it.
    """

    def __init__(self, *acts):
        self.acts = acts
        self.asked = []
        self.keys = []
        self._lock = threading.Lock()

    def handle(self, handler):
        if handler.command == "GET":
            is_models = handler.path == "/v1/models"
            reply(handler, MODELS if is_models else {}, 200 if is_models else 404)
            return
        body = asked_of(handler)
        with self._lock:
            number = len(self.asked)
            self.asked.append(body)
            self.keys.append(handler.headers.get("Authorization"))
        act = self.acts[min(number, len(self.acts) - 1)]
        # the probe may have gone
        with suppress(BrokenPipeError, ConnectionResetError):
            act(handler, body)


def asked_of(handler):
    """The JSON that a request sends."""
    length = int(handler.headers.get("Content-Length") or 0)
    return json.loads(handler.rfile.read(length) or b"{}")


class _Server(ThreadingHTTPServer):
    # with 5, most of 46 requests at once are reset
    request_queue_size = 64


@contextmanager
def listening(handle):
    """Address of a server on loopback that treats every request so."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            handle(self)

        do_POST = do_PUT = do_PATCH = do_GET  # noqa: N815

        def log_message(self, *_):
            pass

    with _Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


@contextmanager
def serving(*acts):
    """(address, what it saw) of a server on loopback."""
    odd = Odd(*acts)
    with listening(odd.handle) as address:
        yield address, odd


def good(handler, request):
    reply(handler, completion(request))


def moved(handler, request):
    """Another answer than before."""
    reply(handler, completion(request, shift=-0.01))


def echoed(handler, request):
    """Rows of the prompt where the other answers have generated ones."""
    answer = completion(request)
    answer["choices"][0]["logprobs"]["token_logprobs"][0] = None
    reply(handler, answer)


def speculative(handler, request):
    """Every token but the first was drafted: it has the value 0.0 and an empty list."""
    answer = completion(request)
    logprobs = answer["choices"][0]["logprobs"]
    for step in range(1, len(logprobs["tokens"])):
        logprobs["token_logprobs"][step] = 0.0
        logprobs["top_logprobs"][step] = {}
    reply(handler, answer)


def always(answer, status=200, **headers):
    return lambda handler, _: reply(handler, answer, status, **headers)


busy = always({"error": {"message": "slow down"}}, 429, Retry_After="0")
away = always(b"", 503, Retry_After="0")
html = always(b"<html><body>Welcome to nginx!</body></html>")
redirect = always(b"", 307, Location="http://127.0.0.1:1/v1/completions")
garbled = always(b"{}", Content_Encoding="gzip")
refused = always({"error": "no such key"}, 401)
error_500 = always(
    {"error": {"message": "CUDA error: an illegal memory access\x1b[31m", "code": 500}},
    500,
)


def cut_off(handler, _):
    handler.send_response(200)
    handler.send_header("Content-Length", "5000")
    handler.end_headers()
    handler.wfile.write(b'{"choices": [')
    handler.wfile.flush()
    handler.connection.shutdown(socket.SHUT_RDWR)


def without(handler, request):
    answer = completion(request)
    answer["choices"][0]["logprobs"] = None
    reply(handler, answer)


def wrong(handler, request):
    """Ids that are none."""
    answer = completion(request)
    answer["choices"][0]["logprobs"] = {
        "content": [
            {
                "id": -4,
                "token": "x",
                "logprob": -1.0,
                "top_logprobs": [],
            }
        ],
    }
    reply(handler, answer)


def endless(handler, _):
    handler.send_response(200)
    handler.send_header("Connection", "close")
    handler.end_headers()
    # until the probe has had enough
    for _ in range(10_000):
        handler.wfile.write(b"data: " + b"x" * (1 << 16) + b"\n")
