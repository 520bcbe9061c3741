"""The contract is shared by the test modules of every store, so its assertions must explain themselves too."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tests.store.contract", "tests.store.machine", "tests.store.script")
