"""One S3 server for all tests of a process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.core.runs.store import s3_server


@pytest.fixture(scope="session")
def server() -> Iterator[tuple[str, s3_server.Faults]]:
    """(address, faults)"""
    with s3_server.served() as running:
        yield running
