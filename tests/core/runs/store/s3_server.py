"""A real S3 server on loopback (moto's), in front of which faults can be planted: every request
passes `Faults`.
"""

import threading
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

SECRET = "a-secret-that-no-sentence-has"
BUCKET = "bucket"


@dataclass
class Faults:
    """plan: called with (method, path, query) of each request; the name of a fault, or None. seen:
    what was asked.
    """

    app: Any
    plan: Callable[[str, str, str], str | None] = lambda method, path, query: None
    seen: list[tuple[str, str, str]] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)

    def __call__(self, environ, start):
        request = (environ["REQUEST_METHOD"], environ["PATH_INFO"], environ.get("QUERY_STRING", ""))
        self.seen.append(request)
        fault = self.plan(*request)
        if fault == "503":
            # with a body unread the connection is reset, and the client may never see the answer
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start("503 Slow Down", [("Content-Type", "application/xml"), ("Connection", "close")])
            return [
                b"<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>",
            ]
        if fault in ("silence", "done, then silence"):
            if fault != "silence":
                # the answer of a put that happened gets lost
                list(self.app(environ, lambda *_: None))
            # longer than the client waits
            self.released.wait(20)
            start("500 Internal Server Error", [("Connection", "close")])
            return [b""]
        if fault == "half":  # of a body, and the connection is closed
            reply = []
            body = b"".join(self.app(environ, lambda *args: reply.extend(args)))
            status, headers, *_ = reply
            kept = [(name, value) for name, value in headers if name.lower() != "connection"]
            start(status, [*kept, ("Connection", "close")])
            return [body[: len(body) // 2]]
        return self.app(environ, start)

    def count(self, method, part):
        """How many requests of this method had `part` in their path or query."""
        return sum(
            1
            for request in self.seen
            if request[0] == method and part in f"{request[1]}?{request[2]}"
        )


@contextmanager
def served():
    """(address, faults) of a server with one empty bucket."""
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        def log(self, *_, **__):
            pass

    faults = Faults(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, faults, threaded=True, request_handler=Quiet)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}"
    try:
        with pytest.MonkeyPatch.context() as patched:
            set_environment(patched, address)
            import boto3

            boto3.client("s3").create_bucket(Bucket=BUCKET)
        yield address, faults
    finally:
        faults.released.set()
        server.shutdown()
        thread.join()
        server.server_close()


def set_environment(patched, address):
    """Credentials and endpoint as the backend reads them, and nothing of the user's own."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": address,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": "/nonexistent",
        "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
    }.items():
        patched.setenv(name, value)
