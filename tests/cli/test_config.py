from __future__ import annotations

import json

import pytest


def shown(seriatim, *args: str) -> dict[str, dict[str, object]]:
    result = seriatim(*args, "config", "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_table_shows_each_setting_its_value_and_its_origin(seriatim, tmp_path, monkeypatch):
    (tmp_path / "seriatim.toml").write_text('store = "sqlite:///orders.db"')
    monkeypatch.setenv("SERIATIM_PROGRESS", "no")
    lines = [line.split() for line in seriatim("config").stdout.splitlines()]
    assert lines[0] == ["setting", "value", "from", "meaning"]
    assert [line[:4] for line in lines[1:]] == [
        ["store", '"sqlite:///orders.db"', "file", "seriatim.toml"],
        ["log_level", '"warning"', "default", "log"],
        ["log_format", '"text"', "default", "the"],
        ["progress", "false", "environment", "show"],
        ["console_token", '""', "default", "the"],
        ["console_ca", '""', "default", "a"],
        ["mqtt_password", '""', "default", "the"],
    ]


def test_json_has_the_same_facts(seriatim):
    assert shown(seriatim)["log_format"] == {"value": "text", "origin": "default"}


def test_the_config_option_names_the_file(seriatim, tmp_path):
    (tmp_path / "other.toml").write_text("progress = false")
    assert shown(seriatim, "--config", "other.toml")["progress"] == {"value": False, "origin": "file other.toml"}


@pytest.mark.parametrize(
    ("options", "level"),
    [
        (["--log-level", "error"], "error"),
        (["-v"], "info"),
        (["-vv"], "debug"),
        (["-v", "--log-level", "error"], "error"),
    ],
)
def test_the_log_level_comes_from_the_command_line(seriatim, options, level):
    assert shown(seriatim, *options)["log_level"] == {"value": level, "origin": "command line"}


def test_a_password_is_hidden(seriatim, monkeypatch):
    monkeypatch.setenv("SERIATIM_STORE", "postgresql://ann:se:c/ret@db.example/orders")
    assert shown(seriatim)["store"]["value"] == "postgresql://ann:***@db.example/orders"
    monkeypatch.setenv("SERIATIM_MQTT_PASSWORD", "s3cret")
    assert shown(seriatim)["mqtt_password"] == {"value": "***", "origin": "environment"}


def test_a_password_of_the_wrong_type_is_not_repeated(seriatim, tmp_path):
    (tmp_path / "seriatim.toml").write_text("mqtt_password = 4711")
    result = seriatim("config")
    assert result.exit_code == 2
    assert "mqtt_password: must be a string, not int" in result.stderr
    assert "4711" not in result.stderr


def test_a_mistake_is_a_usage_error(seriatim, monkeypatch):
    monkeypatch.setenv("SERIATIM_STOR", "x")
    result = seriatim("config")
    assert result.exit_code == 2
    assert result.stderr == "error: environment: unknown variable SERIATIM_STOR; did you mean 'SERIATIM_STORE'?\n"
