"""The reference of the admin API is what its description says."""

from __future__ import annotations

from docs import admin_api


def test_the_reference_is_made_from_the_description():
    page = admin_api.PAGE.read_text(encoding="utf-8")
    assert admin_api.rewrite(page) == page, "stale: run 'make docs'"
    assert "| `POST keys/retry` | `subscription`, `key` |" in page
