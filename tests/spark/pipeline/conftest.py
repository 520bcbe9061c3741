from __future__ import annotations

import pytest

from seriatim.spark.state.files import LocalFiles


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders that are listed while the test runs, each as often as it is."""
    found: list[str] = []
    plain = LocalFiles.names

    def names(files: LocalFiles, folder: str) -> list[str]:
        found.append(folder)
        return plain(files, folder)

    monkeypatch.setattr(LocalFiles, "names", names)
    return found
