"""The browser of the page's tests: skipped where there is none, unless `RADICEL_REQUIRE_CHROMIUM` says it must be."""

from __future__ import annotations

import os
from collections.abc import Iterator

import chromium
import pytest


@pytest.fixture(scope="session")
def browser() -> Iterator[chromium.Browser]:
    path = chromium.find()
    if path is None:
        why = f"no browser: none of {', '.join(chromium.NAMES)} is on PATH (Debian: apt-get install chromium)"
        if os.environ.get("RADICEL_REQUIRE_CHROMIUM"):
            pytest.fail(why)
        pytest.skip(why)
    with chromium.Browser(path) as running:
        yield running
