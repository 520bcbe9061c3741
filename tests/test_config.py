from __future__ import annotations

from pathlib import Path

import pytest

from seriatim.config import Config, load
from seriatim.errors import InvalidArgument, NotFound


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    """A home folder of our own, so that no test reads the configuration of whoever runs it."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_without_any_source_every_value_is_its_default(tmp_path):
    loaded = load(environ={}, directory=tmp_path)
    assert loaded.values == Config("sqlite:///seriatim.db", "warning", "text", True)
    assert set(loaded.origins.values()) == {"default"}


def test_command_line_beats_environment_beats_file_beats_default(tmp_path):
    file = write(tmp_path / "seriatim.toml", 'store = "file"\nlog_level = "error"\nprogress = false')
    environ = {"SERIATIM_STORE": "environment", "SERIATIM_LOG_LEVEL": "info"}
    loaded = load(overrides={"log_level": "debug"}, environ=environ, directory=tmp_path)
    assert loaded.values == Config(store="environment", log_level="debug", log_format="text", progress=False)
    assert loaded.origins == {
        "store": "environment",
        "log_level": "command line",
        "log_format": "default",
        "progress": f"file {file}",
        "console_token": "default",
        "console_ca": "default",
        "mqtt_password": "default",
    }


def test_an_option_that_was_not_given_overrides_nothing(tmp_path):
    assert load(overrides={"log_level": None}, environ={}, directory=tmp_path).values.log_level == "warning"


def test_only_the_first_file_found_is_read(tmp_path, home):
    user = write(home / ".config/seriatim/config.toml", 'store = "user"')
    assert load(environ={}, directory=tmp_path).values.store == "user"
    write(tmp_path / "seriatim.toml", 'log_level = "error"')
    assert load(environ={}, directory=tmp_path).values.store == "sqlite:///seriatim.db"
    named = write(tmp_path / "named.toml", 'store = "variable"')
    assert load(environ={"SERIATIM_CONFIG": str(named)}, directory=tmp_path).values.store == "variable"
    assert load(user, environ={"SERIATIM_CONFIG": str(named)}, directory=tmp_path).values.store == "user"


def test_the_users_file_is_sought_where_xdg_says(tmp_path):
    write(tmp_path / "xdg/seriatim/config.toml", 'store = "xdg"')
    assert load(environ={"XDG_CONFIG_HOME": str(tmp_path / "xdg")}, directory=tmp_path).values.store == "xdg"


def test_a_relative_xdg_folder_is_ignored(tmp_path, monkeypatch, home):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "xdg/seriatim/config.toml", 'store = "xdg"')
    write(home / ".config/seriatim/config.toml", 'store = "home"')
    assert load(environ={"XDG_CONFIG_HOME": "xdg"}).values.store == "home"


def test_a_user_without_a_home_has_no_file(tmp_path, monkeypatch):
    def fail(_: str) -> None:
        raise KeyError

    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", fail)  # as in a container that runs as any number
    assert load(environ={}, directory=tmp_path).values == Config()


def test_a_named_file_that_does_not_exist_is_an_error(tmp_path):
    with pytest.raises(NotFound, match=r"no configuration file '.*absent.toml'; create it"):
        load(tmp_path / "absent.toml", environ={})


@pytest.mark.parametrize("text", ["true", "YES", "on", "1"])
def test_the_environment_spells_true_in_several_ways(tmp_path, text):
    write(tmp_path / "seriatim.toml", "progress = false")
    assert load(environ={"SERIATIM_PROGRESS": text}, directory=tmp_path).values.progress is True


@pytest.mark.parametrize("text", ["false", "No", "off", "0"])
def test_the_environment_spells_false_in_several_ways(tmp_path, text):
    assert load(environ={"SERIATIM_PROGRESS": text}, directory=tmp_path).values.progress is False


def test_an_empty_variable_counts_as_not_set(tmp_path):
    assert load(environ={"SERIATIM_STORE": ""}, directory=tmp_path).origins["store"] == "default"


@pytest.mark.parametrize("name", ["SERIATIM_KAFKA_PASSWORD", "SERIATIM_STATE_COPIES"])
def test_variables_that_are_read_elsewhere_are_no_unknown_settings(tmp_path, name):
    assert load(environ={name: "x"}, directory=tmp_path).values == Config()


def test_variables_of_other_programs_are_none_of_our_business(tmp_path):
    assert load(environ={"SERIATIMX": "1", "PATH": "/bin"}, directory=tmp_path).values == Config()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('log_levl = "info"', r"file .*seriatim.toml: unknown key 'log_levl'; did you mean 'log_level'\?"),
        (
            "zzz = 1",
            r"unknown key 'zzz'; known are: console_ca, console_token, log_format, log_level, mqtt_password, progress, store",
        ),
        ("store = 3", r"file .*seriatim.toml, store: must be a string, not 3"),
        ('progress = "true"', r"file .*seriatim.toml, progress: must be true or false, not 'true'"),
        ('log_level = "loud"', r"log_level: must be one of debug, info, warning, error, not 'loud'"),
        ('log_format = "xml"', r"log_format: must be one of text, json, not 'xml'"),
        ("store", r"seriatim.toml' is not valid TOML: "),
    ],
)
def test_a_mistake_in_the_file_is_refused(tmp_path, text, message):
    write(tmp_path / "seriatim.toml", text)
    with pytest.raises(InvalidArgument, match=message):
        load(environ={}, directory=tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("SERIATIM_STOR", "x", r"environment: unknown variable SERIATIM_STOR; did you mean 'SERIATIM_STORE'\?"),
        ("SERIATIM_CONFIGG", "x", r"did you mean 'SERIATIM_CONFIG'\?"),
        ("SERIATIM_PROGRESS", "maybe", r"environment, SERIATIM_PROGRESS: must be true or false, not 'maybe'"),
        ("SERIATIM_LOG_LEVEL", "loud", r"environment, SERIATIM_LOG_LEVEL: must be one of debug, "),
    ],
)
def test_a_mistake_in_the_environment_is_refused(tmp_path, name, text, message):
    with pytest.raises(InvalidArgument, match=message):
        load(environ={name: text}, directory=tmp_path)
