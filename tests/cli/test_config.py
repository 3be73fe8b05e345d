"""`nadi up --config`: a file of settings, what comes before it, what is wrong with it; and `--print-config`."""

from __future__ import annotations

import inspect
import os
import tomllib
from pathlib import Path
from urllib.request import urlopen

import pytest
import typer
from typer.testing import CliRunner

import nadi
from nadi.cli.app import app
from nadi.config import OPTIONS

from .test_cluster import up as served

SETTINGS = {option.key: option for option in OPTIONS.values()}


def run(*arguments: str, code: int = 0, environment: dict[str, str] | None = None) -> str:
    """What `nadi up` with these prints."""
    result = CliRunner().invoke(app, ["up", *arguments], env={"COLUMNS": "200", **(environment or {})})
    assert result.exit_code == code, result.output
    return result.output


def written(folder: Path, text: str) -> Path:
    file = folder / "nadi.toml"
    file.write_text(text)
    return file


def effective(*arguments: str, **environment: str) -> tuple[dict[str, object], dict[str, str]]:
    """The settings that would hold, and where each comes from."""
    text = run(*arguments, "--print-config", environment=environment)
    lines = [line.rpartition("  # ") for line in text.splitlines() if not line.startswith("#")]
    return tomllib.loads(text), {line.partition(" = ")[0]: whence for line, _, whence in lines}


def test_every_option_is_a_setting_by_its_name() -> None:
    options = {
        option.removeprefix("--")
        for parameter in typer.main.get_command(app).commands["up"].params  # type: ignore[attr-defined]
        for option in parameter.opts
        if option.startswith("--")
    }
    assert set(SETTINGS) == options - {"config", "print-config", "help"}
    assert {"tls-cert", "traces", "tier2-option", "verbose"} <= set(SETTINGS)


def test_a_server_is_what_its_file_says(tmp_path: Path) -> None:
    file = written(tmp_path, f'data = "{tmp_path}/kept"\ncontainers = 3\nlog-level = "ERROR"\n')
    with served("--config", str(file)) as server, urlopen(f"{server.rest}/v1/health/details/container-2") as answer:
        assert server.said[0] == f"nadi is serving {tmp_path}/kept"
        assert answer.status == 200


def test_the_command_line_comes_before_the_environment_and_that_before_the_file(tmp_path: Path) -> None:
    file = written(tmp_path, 'store = "file:///of-the-file"\nport = 1\nhost = "127.0.0.2"\ncontainers = 4\n')
    said, whence = effective("--config", str(file), "--port", "2", NADI_STORE="file:///of-the-environment")
    assert (said["store"], whence["store"]) == ("file:///of-the-environment", "environment: NADI_STORE")
    assert (said["port"], whence["port"]) == (2, "command line")
    assert (said["host"], whence["host"]) == ("127.0.0.2", str(file))
    assert "rest-port" not in said  # a free one after the port, which is chosen when the server starts
    said, whence = effective("--config", str(file), "--store", "file:///of-the-command", NADI_STORE="file:///e")
    assert (said["store"], whence["store"]) == ("file:///of-the-command", "command line")


def test_lists_of_the_command_line_replace_those_of_the_file(tmp_path: Path) -> None:
    file = written(tmp_path, 'store = "s3://b/p"\nstore-option = ["endpoint=http://h:1", "region=eu"]\n')
    assert effective("--config", str(file))[0]["store-option"] == ["endpoint=http://h:1", "region=eu"]
    said, _ = effective("--config", str(file), "--store-option", "region=us")
    assert said["store-option"] == ["region=us"]


def test_verbose_and_the_level_are_one_setting(tmp_path: Path) -> None:
    loud, quiet = tmp_path / "loud", tmp_path / "quiet"
    loud.mkdir()
    quiet.mkdir()
    file = str(written(quiet, 'log-level = "ERROR"\n'))
    assert effective("--config", file, "-v")[0]["log-level"] == "INFO"
    assert effective("--config", file, "-v")[1]["log-level"] == "command line"
    assert effective("--config", file)[0]["log-level"] == "ERROR"
    file = str(written(loud, "verbose = true\n"))
    assert effective("--config", file)[0]["log-level"] == "INFO"
    assert effective("--config", file, "--log-level", "debug")[0]["log-level"] == "debug"
    both = str(written(tmp_path, 'verbose = true\nlog-level = "INFO"\n'))
    assert f"{both}: verbose has no effect beside {both}: log-level" in run("--config", both, code=2)


@pytest.mark.parametrize(
    "settings",
    [
        "",
        'data = "/d"\nport = 0\nverbose = true\nlog-max = "20GiB"\ntier2 = "s3://b/p"\ntier2-option = ["region=eu"]',
        'store = "s3://b/p"\nlog = "nats://h/S"\nlog-option = ["replicas=3"]\ncache = "/c \\"ä\\\\"',
        'workers = 2\nhost = "0.0.0.0"\nadvertised-host = "h"\ntls-cert = "c"\ntls-key = "k"\nusers-file = "u"',
    ],
)
def test_what_is_printed_is_a_file_that_says_the_same(settings: str, tmp_path: Path) -> None:
    first, _ = effective("--config", str(written(tmp_path, settings)))
    again, whence = effective(
        "--config", str(written(tmp_path, run("--config", str(tmp_path / "nadi.toml"), "--print-config")))
    )
    assert again == first
    assert set(whence.values()) == {str(tmp_path / "nadi.toml")}
    for key, value in tomllib.loads(settings).items():
        assert first[key] == (False if key == "verbose" else value)


def test_nothing_secret_is_printed_and_nothing_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = run(
        "--bearer-keys",
        "https://me:hush@keys.example/jwks?sig=hush",
        "--print-config",
        environment={"AWS_SECRET_ACCESS_KEY": "hush"},
    )
    assert "hush" not in text
    assert 'bearer-keys = "https://…@keys.example/jwks?…"' in text
    file = written(tmp_path, 'store = "s3://b/p"\nstore-option = ["secret_access_key=hush"]\n')
    text = run("--config", str(file), "--print-config", code=2)
    assert "hush" not in text
    assert f"{file}: store-option secret_access_key: " in text
    assert os.listdir(tmp_path) == ["nadi.toml"]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ("prot = 1", "there is no setting 'prot': did you mean 'port'?"),
        ("tls_cert = 'c'", "there is no setting 'tls_cert': did you mean 'tls-cert'?"),
        ("colour = 'red'", "there is no setting 'colour': there are data, host, port, "),
        ("config = 'other.toml'", "'config' is an option of the command line alone"),
        ("[security]\ntls-cert = 'c'", "there are no tables, and [security] begins one: leave that line out"),
        ("port = '9090'", "port can't be a text: "),
        ("port = 9090.0", "port can't be a decimal number: "),
        ("port = true", "port can't be true or false: "),
        ("port = 65536", "port can't be 65536: "),
        ("workers = 0", "workers can't be 0: "),
        ("insecure-public = 'yes'", "insecure-public can't be a text: "),
        ("data = 5", "data can't be a number: "),
        ("data = ''", "data is empty (leave it out instead)"),
        ("data = 2026-11-14", "data can't be a time"),
        ('data = "a\\u0000b"', "data has a NUL character"),
        (
            "store-option = 'region=eu'",
            "store-option can't be a text: ",
        ),
        ("store-option = ['region=eu', 5]", "store-option has an entry that isn't a text"),
        ("port = 1\nport = 2", "is not TOML: "),
        ("port: 1", "is not TOML: "),
        ("scaling = 'quick'", "scaling can't be 'quick': "),
        ("log-format = 'xml'", "log-format can't be 'xml': "),
        ("log-level = 'LOUD'", "log-level can't be 'LOUD': "),
        ("traces = 'all'", "traces can't be 'all': "),
        ("log-max = '5'", "log-max: "),
        (
            "wal-profile = 'cheap'\nstore = 'file:///s'",
            "wal-profile can't be 'cheap': ",
        ),
        ("cache = 'c'", "cache applies to"),
        ("data = 'd'\nstore = 'file:///s'", "data applies to"),
        ("tier2-option = ['a=b']", "tier2-option has no effect without --tier2"),
        ("containers = 0", "containers can't be 0: "),
        ("containers = -3", "containers can't be -3: "),
        ("containers = 1000000000", "containers can't be 1000000000: "),
        (f"port = {'9' * 5_000}", "is not TOML: "),
        (
            "bearer-issuer = 'https://login.example'",
            "bearer-issuer has no effect without --bearer-keys",
        ),
        (
            "bearer-claim = 'rights'\nusers-file = 'u'",
            "bearer-claim has no effect without --bearer-keys",
        ),
        ("token-lifetime = 60", "token-lifetime has no effect without --users-file or --bearer-keys"),
        ("signing-key = 'k'", "signing-key has no effect without --users-file or --bearer-keys"),
        ("port = 9091\nrest-port = 9091", "rest-port are both 9091: give one of them another port"),
    ],
)
@pytest.mark.parametrize("more", [(), ("--print-config",)], ids=["start", "print"])
def test_a_wrong_file_is_told_by_file_and_setting(
    settings: str, says: str, more: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = written(tmp_path, settings)
    output = run("--config", str(file), *more, code=2)
    assert output.startswith(f"error: {file}")
    assert says in output
    assert "Traceback" not in output
    assert os.listdir(tmp_path) == ["nadi.toml"]


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for file in (tmp_path / "none.toml", tmp_path):
        assert f"the settings in {file} can't be read: " in run("--config", str(file), code=2)
    (tmp_path / "latin.toml").write_bytes(b'data = "\xe4"')
    assert "is not TOML: " in run("--config", str(tmp_path / "latin.toml"), code=2)
    (tmp_path / "large.toml").write_bytes(b"#" * (1 << 16) + b"\n")
    assert "isn't a file of settings" in run("--config", str(tmp_path / "large.toml"), code=2)


def test_what_only_a_start_found_is_found_before_one(tmp_path: Path) -> None:
    assert "--insecure-public" in run("--host", "0.0.0.0", "--print-config", code=2)
    assert "--tls-cert and --tls-key" in run("--tls-cert", "c", "--print-config", code=2)


@pytest.mark.parametrize("name", ["tier2", "store", "log-max", "host", "advertised-host", "bearer-keys"])
def test_what_is_empty_is_not_taken_for_left_out(name: str) -> None:
    """As of a variable that isn't set: chunks would be where nobody looks for them."""
    output = run(f"--{name}", "", "--print-config", code=2)
    assert f"--{name}" in output
    assert "it is empty" in output


def test_one_port_is_not_for_two_doors() -> None:
    assert "--port and --store-port are both 12345" in run(
        "--port", "12345", "--store-port", "12345", "--print-config", code=2
    )
    assert "--port and --rest-port are both 7" in run("--port", "7", "--rest-port", "7", "--print-config", code=2)
    run("--port", "0", "--rest-port", "0", "--print-config")


def test_help_shows_what_holds_without_an_option() -> None:
    text = CliRunner().invoke(app, ["up", "--help"], env={"COLUMNS": "200"}).output
    for option in OPTIONS.values():
        assert f"--{option.key}" in text
        assert not option.default_text or f"[default: ({option.default_text})]" in text


def test_arguments_of_an_embedded_server_are_options_with_their_defaults() -> None:
    options = {name: option.default for name, option in OPTIONS.items()}
    more = {"folder", "timeout_s", "environment", "security"}
    for name, parameter in inspect.signature(nadi.embedded).parameters.items():
        assert name in options or name in more
        if name in options and name != "port":  # any free one
            assert (parameter.default or None) == (options[name] or None)
