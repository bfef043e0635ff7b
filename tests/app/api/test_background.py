"""What the server does at its start."""

import os

from starlette.applications import Starlette
from starlette.testclient import TestClient

from app.shell import store_changes
from app.upload.importing import lifespan


def test_what_a_killed_server_left_is_removed_at_the_start(store):
    partial, old, new = (
        store / name for name in (".partial-of-a-killed-server", ".uploads/old", ".uploads/new")
    )
    for folder in (partial, old, new):
        folder.mkdir(parents=True)
    os.utime(old, (1, 1))
    store_changes.jobs.cache_clear()
    with TestClient(Starlette(lifespan=lifespan)):
        assert [folder.exists() for folder in (partial, old, new)] == [False, False, True]
