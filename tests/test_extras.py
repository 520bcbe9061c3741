from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from seriatim.errors import MissingExtra
from seriatim.extras import EXTRAS, require_extra


def test_an_extra_whose_modules_are_all_there_is_accepted():
    require_extra("spark", "json", "csv", what="this test")


def test_a_missing_module_names_the_extra_and_how_to_install_it():
    with pytest.raises(MissingExtra, match=r"^this test needs the extra 'mqtt': pip install 'seriatim\[mqtt\]'$"):
        require_extra("mqtt", "json", "no_such_module", what="this test")


def test_a_missing_parent_package_names_the_extra_too():
    with pytest.raises(MissingExtra, match="needs the extra 'server'"):
        require_extra("server", "no_such_package.part", what="this test")


def test_the_known_extras_are_those_that_can_be_installed():
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8"))
    assert set(EXTRAS) == set(project["project"]["optional-dependencies"])
