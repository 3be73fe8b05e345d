"""`nadi up --config`: precedence and validation of settings files; and `--print-config`."""

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
    """Run `nadi up` with these arguments and return its output."""
    result = CliRunner().invoke(app, ["up", *arguments], env={"COLUMNS": "200", **(environment or {})})
    assert result.exit_code == code, result.output
    return result.output


def written(folder: Path, text: str) -> Path:
    file = folder / "nadi.toml"
    file.write_text(text)
    return file


def effective(*arguments: str, **environment: str) -> tuple[dict[str, object], dict[str, str]]:
    """Return the effective settings, and the source of each."""
    text = run(*arguments, "--print-config", environment=environment)
    lines = [line.rpartition("  # ") for line in text.splitlines() if not line.startswith("#")]
    return tomllib.loads(text), {line.partition(" = ")[0]: source for line, _, source in lines}


def test_settings_have_the_names_of_options() -> None:
    options = {
        option.removeprefix("--")
        for parameter in typer.main.get_command(app).commands["up"].params  # type: ignore[attr-defined]
        for option in parameter.opts
        if option.startswith("--")
    }
    assert set(SETTINGS) == options - {"config", "print-config", "help"}
    assert {"tls-cert", "traces", "tier2-option", "verbose"} <= set(SETTINGS)


def test_up_with_a_settings_file_uses_its_settings(tmp_path: Path) -> None:
    file = written(tmp_path, f'data = "{tmp_path}/kept"\ncontainers = 3\nlog-level = "ERROR"\n')
    with served("--config", str(file)) as server, urlopen(f"{server.rest}/v1/health/details/container-2") as answer:
        assert server.printed[0] == f"nadi is serving {tmp_path}/kept"
        assert answer.status == 200


def test_precedence_is_command_line_environment_file(tmp_path: Path) -> None:
    file = written(tmp_path, 'store = "file:///of-the-file"\nport = 1\nhost = "127.0.0.2"\ncontainers = 4\n')
    settings, sources = effective("--config", str(file), "--port", "2", NADI_STORE="file:///of-the-environment")
    assert (settings["store"], sources["store"]) == ("file:///of-the-environment", "environment: NADI_STORE")
    assert (settings["port"], sources["port"]) == (2, "command line")
    assert (settings["host"], sources["host"]) == ("127.0.0.2", str(file))
    assert "rest-port" not in settings  # chosen when the server starts: a free one after the port
    settings, sources = effective("--config", str(file), "--store", "file:///of-the-command", NADI_STORE="file:///e")
    assert (settings["store"], sources["store"]) == ("file:///of-the-command", "command line")


def test_list_option_replaces_the_list_of_the_file(tmp_path: Path) -> None:
    file = written(tmp_path, 'store = "s3://b/p"\nstore-option = ["endpoint=http://h:1", "region=eu"]\n')
    assert effective("--config", str(file))[0]["store-option"] == ["endpoint=http://h:1", "region=eu"]
    settings, _ = effective("--config", str(file), "--store-option", "region=us")
    assert settings["store-option"] == ["region=us"]


def test_verbose_and_log_level_override_each_other_by_precedence(tmp_path: Path) -> None:
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
    output = run("--config", both, code=2)
    assert f"{both}: verbose" in output
    assert f"{both}: log-level" in output


@pytest.mark.parametrize(
    "settings",
    [
        "",
        'data = "/d"\nport = 0\nverbose = true\nlog-max = "20GiB"\ntier2 = "s3://b/p"\ntier2-option = ["region=eu"]',
        'store = "s3://b/p"\nlog = "nats://h/S"\nlog-option = ["replicas=3"]\ncache = "/c \\"ä\\\\"',
        'workers = 2\nhost = "0.0.0.0"\nadvertised-host = "h"\ninsecure-public = true',
    ],
)
def test_print_config_prints_an_equivalent_file(settings: str, tmp_path: Path) -> None:
    first, _ = effective("--config", str(written(tmp_path, settings)))
    again, sources = effective(
        "--config", str(written(tmp_path, run("--config", str(tmp_path / "nadi.toml"), "--print-config")))
    )
    assert again == first
    assert set(sources.values()) == {str(tmp_path / "nadi.toml")}
    for key, value in tomllib.loads(settings).items():
        assert first[key] == (False if key == "verbose" else value)


def test_print_config_hides_secrets_and_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = run(
        "--bearer-keys",
        "https://me:hush@keys.example/jwks?sig=hush",
        "--bearer-issuer=i",
        "--bearer-audience=a",
        "--print-config",
        environment={"AWS_SECRET_ACCESS_KEY": "hush"},
    )
    assert "hush" not in text
    assert 'bearer-keys = "https://…@keys.example/jwks?…"' in text
    file = written(tmp_path, 'store = "s3://b/p"\nstore-option = ["secret_access_key=hush"]\n')
    text = run("--config", str(file), "--print-config", code=2)
    assert "hush" not in text
    assert f"{file}: store-option secret_access_key" in text
    assert os.listdir(tmp_path) == ["nadi.toml"]


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ("prot = 1", "'port'"),
        ("tls_cert = 'c'", "'tls-cert'"),
        ("colour = 'red'", "data, host, port, "),
        ("config = 'other.toml'", "'config'"),
        ("[security]\ntls-cert = 'c'", "[security]"),
        ("port = '9090'", "port = "),
        ("port = 9090.0", "port "),
        ("port = true", "port "),
        ("port = 65536", "65536"),
        ("workers = 0", "workers "),
        ("insecure-public = 'yes'", "insecure-public "),
        ("data = 5", 'data = "…"'),
        ("data = ''", "data is empty"),
        ("data = 2026-11-14", "data "),
        ('data = "a\\u0000b"', "NUL"),
        ("store-option = 'region=eu'", 'store-option = ["…"]'),
        ("store-option = ['region=eu', 5]", "store-option "),
        ("port = 1\nport = 2", "is not TOML: "),
        ("port: 1", "is not TOML: "),
        ("scaling = 'quick'", "fast, classic"),
        ("log-format = 'xml'", "text, json"),
        ("log-level = 'LOUD'", "DEBUG, INFO,"),
        ("traces = 'all'", "none, otlp"),
        ("log-max = '5'", "log-max: "),
        ("wal-profile = 'cheap'\nstore = 'file:///s'", "latency, balanced, cost"),
        ("cache = 'c'", "cache "),
        ("data = 'd'\nstore = 'file:///s'", "data "),
        ("tier2-option = ['a=b']", "--tier2"),
        ("containers = 0", "containers "),
        ("containers = -3", "-3"),
        ("containers = 1000000000", "1000000000"),
        (f"port = {'9' * 5_000}", "is not TOML: "),
        ("bearer-issuer = 'https://login.example'", "--bearer-keys"),
        ("bearer-claim = 'rights'\nusers-file = 'u'", "--bearer-keys"),
        ("bearer-keys = 'k'", "set --bearer-issuer and --bearer-audience"),
        ("token-lifetime = 60", "--users-file"),
        ("tier2 = 's3:/bucket'", "tier2: 's3:/bucket' names no bucket"),
        ("store = 'foo://x'", "store: 'foo://x' is not a store"),
        ("store = 'hdfs://h:1/x'", "store: hdfs://h:1/x: HDFS can't"),
        ("store = 's3://b/p'\nlog = 'nats://h'", "log: nats://h: use nats://"),
        ("signing-key = 'k'", "--users-file"),
        ("port = 9091\nrest-port = 9091", "rest-port are both 9091"),
    ],
)
@pytest.mark.parametrize("more", [(), ("--print-config",)], ids=["start", "print"])
def test_invalid_file_error_names_file_and_setting(
    settings: str, named: str, more: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = written(tmp_path, settings)
    output = run("--config", str(file), *more, code=2)
    assert output.startswith(f"error: {file}")
    assert named in output
    assert "Traceback" not in output
    assert os.listdir(tmp_path) == ["nadi.toml"]


def test_unreadable_file_fails(tmp_path: Path) -> None:
    for file in (tmp_path / "none.toml", tmp_path):
        assert f"{file}: " in run("--config", str(file), code=2)
    (tmp_path / "latin.toml").write_bytes(b'data = "\xe4"')
    assert "is not TOML: " in run("--config", str(tmp_path / "latin.toml"), code=2)
    (tmp_path / "large.toml").write_bytes(b"#" * (1 << 16) + b"\n")
    assert f"{1 << 16:,}" in run("--config", str(tmp_path / "large.toml"), code=2)


def test_print_config_checks_what_a_start_requires(tmp_path: Path) -> None:
    assert "--insecure-public" in run("--host", "0.0.0.0", "--print-config", code=2)
    assert "--tls-key" in run("--tls-cert", "c", "--print-config", code=2)
    missing = str(tmp_path / "missing")
    assert missing in run("--users-file", missing, "--print-config", code=2)
    assert missing in run("--tls-cert", missing, "--tls-key", missing, "--print-config", code=2)


@pytest.mark.parametrize("name", ["tier2", "store", "log-max", "host", "advertised-host", "bearer-keys"])
def test_empty_option_is_rejected(name: str) -> None:
    """An unset shell variable would otherwise select the default, such as local chunks."""
    output = run(f"--{name}", "", "--print-config", code=2)
    assert f"--{name}" in output
    assert "empty" in output


def test_same_port_for_two_services_is_rejected() -> None:
    assert "--port and --store-port are both 12345" in run(
        "--port", "12345", "--store-port", "12345", "--print-config", code=2
    )
    assert "--port and --rest-port are both 7" in run("--port", "7", "--rest-port", "7", "--print-config", code=2)
    run("--port", "0", "--rest-port", "0", "--print-config")


def test_help_shows_defaults_of_all_options() -> None:
    text = CliRunner().invoke(app, ["up", "--help"], env={"COLUMNS": "200"}).output
    for option in OPTIONS.values():
        assert f"--{option.key}" in text
        assert not option.default_text or f"[default: ({option.default_text})]" in text


def test_embedded_has_arguments_and_defaults_of_options() -> None:
    options = {name: option.default for name, option in OPTIONS.items()}
    more = {"folder", "timeout_s", "environment", "security"}
    for name, parameter in inspect.signature(nadi.embedded).parameters.items():
        assert name in options or name in more
        if name in options and name != "port":  # any free one
            assert (parameter.default or None) == (options[name] or None)
