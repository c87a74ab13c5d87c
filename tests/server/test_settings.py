"""Settings: flags before variables before the file before defaults; every mistake named at the start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from backstay.cli.main import dw
from backstay.server.settings import Settings, WrongSetting, load


def test_flags_go_before_variables_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "dw.toml"
    file.write_text('port = 1\nhost = "10.0.0.1"\nserver_id = "from file"\n')
    environment = {"DW_CONFIG": str(file), "DW_PORT": "2", "DW_HOST": "10.0.0.2", "DW_DB": "x", "PATH": "/"}
    settings = load({"port": "3", "token": None}, environment)
    assert (settings.port, settings.host, settings.server_id) == (3, "10.0.0.2", "from file")
    assert load({}, {}) == Settings()


def variables(command: click.Command = dw) -> dict[str, str]:
    """The variables of the environment that `dw` reads, of all its commands, each with a value that it may have."""
    options = [option for option in command.params if isinstance(option, click.Option)]
    read = {
        option.envvar: next(iter(getattr(option.type, "choices", [])), "https://flows.example.com")
        for option in options
        if isinstance(option.envvar, str)
    }
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            read |= variables(found)
    return read


def test_a_server_starts_with_every_variable_of_the_command_line_set() -> None:
    assert {"DW_DB", "DW_SERVER", "DW_TOKEN", "DW_LOG_FORMAT"} <= variables().keys()
    settings = load({}, variables())
    assert settings.port == Settings().port


@pytest.mark.parametrize(
    ("flags", "environment", "said"),
    [
        ({}, {"DW_PROT": "1"}, ["DW_PROT", "'1'", "DW_PORT"]),
        ({}, {"DW_PORT": "many"}, ["DW_PORT", "'many'"]),
        ({}, {"DW_PORT": "70000"}, ["DW_PORT", "'70000'", "65535"]),
        ({"port": "-1"}, {}, ["--port", "'-1'", "nearest valid value is '0'"]),
        ({"auth": "tokens"}, {}, ["--auth", "'tokens'", "'token'"]),
        ({"store": "mysql://x"}, {}, ["mysql://x", "sqlite:PATH", "postgresql://USER@HOST/DATABASE"]),
        ({"store": "sqlite:"}, {}, ["sqlite:PATH"]),
        ({"auth": "signature"}, {}, ["DW_SIGNATURE_KEY"]),
        ({"tls_key": "k.pem"}, {}, ["tls_certificate"]),
        ({"worker_stale_after_seconds": 10}, {}, ["worker_stale_after_seconds", "10", "60"]),
        ({}, {"DW_WORKER_TOKNE": "hush"}, ["DW_WORKER_TOKNE", "DW_WORKER_TOKEN"]),
        ({"config": "/nowhere.toml"}, {}, ["/nowhere.toml", "No such file"]),
    ],
)
def test_a_wrong_setting_is_named_with_its_value_and_the_nearest_valid_one(
    flags: dict[str, Any], environment: dict[str, str], said: list[str]
) -> None:
    with pytest.raises(WrongSetting) as wrong:
        load(flags, environment)
    for part in said:
        assert part in str(wrong.value)
    assert "hush" not in str(wrong.value), "secrets are not shown, not even misspelt ones"


def test_a_file_with_an_unknown_name_or_no_toml_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "dw.toml"
    for text, said in (("prot = 1", "did you mean port"), ("port =", "not TOML")):
        file.write_text(text)
        with pytest.raises(WrongSetting, match=said):
            load({"config": str(file)}, {})
