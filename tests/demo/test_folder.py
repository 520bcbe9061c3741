"""Where a run of the demo leaves things."""

from __future__ import annotations

import pytest

from seriatim.demo.folder import DemoFolder
from seriatim.errors import AlreadyExists, FailedPrecondition


def test_every_run_gets_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = [str(DemoFolder.make(None).path) for _ in range(3)]
    assert made == ["seriatim-demo", "seriatim-demo-2", "seriatim-demo-3"]


def test_a_folder_that_is_named_is_made(tmp_path):
    assert DemoFolder.make(tmp_path / "deep" / "down").path.is_dir()


def test_an_empty_folder_is_taken_and_one_that_is_not_is_refused(tmp_path):
    folder = DemoFolder.make(tmp_path)
    folder.store.touch()
    with pytest.raises(AlreadyExists, match="not an empty folder"):
        DemoFolder.make(tmp_path)
    with pytest.raises(AlreadyExists, match="not an empty folder"):
        DemoFolder.make(folder.store)


def test_a_place_where_nothing_can_be_made_is_an_error_that_says_so(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(FailedPrecondition, match="--folder"):
        DemoFolder.make(tmp_path / "file" / "below")
