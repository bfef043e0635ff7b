"""Page tests share one process: what the pages cached is let go of at the end, open run files among it."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import streamlit as st


@pytest.fixture(scope="session", autouse=True)
def emptied_caches() -> Iterator[None]:
    yield
    st.cache_resource.clear()
    gc.collect()
