"""Commands find a user's cache that is the tests' own."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def users_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
