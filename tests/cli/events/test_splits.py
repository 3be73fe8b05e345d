"""`nadi splits` and `nadi read --split`."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

import nadi
from nadi.client.scan.split import Split
from nadi.errors import InvalidArgumentError
from tests.cli.test_streams import Shell

EVENTS = 400
KEYS = ("oven", "hall", "lamp", "pump", "attic")


def event(number: int) -> str:
    return f'{{"meter": "{KEYS[number % len(KEYS)]}", "wh": {number}, "pad": "{"x" * 200}"}}'


@pytest.fixture(scope="module")
def planned(shell: Shell, manager: nadi.StreamManager) -> list[str]:
    """Splits of stream home/plan, whose slice "half" is its second half."""
    manager.create_stream("home", "plan", 3)
    cuts = manager.cuts("home", "plan")
    with manager.create_writer("home", "plan") as writer:
        for number in range(EVENTS):
            writer.write_event(event(number).encode(), KEYS[number % len(KEYS)])
            if number == EVENTS // 2 - 1:
                writer.flush(60)
                middle = cuts.tail()
    manager.slices("home").create("half", middle, cuts.tail())
    result = shell.run("splits", "home", "plan", "--max-bytes", "20KB")
    assert result.stderr.startswith(f"{len(result.stdout.splitlines())} splits of home/plan, ")
    return result.stdout.splitlines()


def test_splits_together_contain_each_event_once(shell: Shell, planned: list[str]) -> None:
    assert len(planned) > 4
    by_arguments = shell.run("read", "--split", *planned).stdout.splitlines()
    by_pipe = shell.run("read", "--split", stdin="\n".join(planned).encode()).stdout.splitlines()
    assert by_arguments == by_pipe
    assert sorted(by_pipe) == sorted(map(event, range(EVENTS)))
    separately = [shell.run("read", "--split", line).stdout.splitlines() for line in planned]
    assert [line for lines in separately for line in lines] == by_pipe


def test_read_split_ignores_text_before_a_tab(shell: Shell, planned: list[str]) -> None:
    stdin = "".join(f"{number * 300}\t{line}\n" for number, line in enumerate(planned))
    assert len(shell.run("read", "--split", stdin=stdin.encode()).stdout.splitlines()) == EVENTS
    assert shell.run("read", "--split", stdin=b"").stdout == ""


def test_read_split_supports_the_output_options_of_read(shell: Shell, planned: list[str]) -> None:
    keyed = shell.run("read", "--split", planned[0], "--format", r"%k\t1\n", "--key-field", "meter").stdout.splitlines()
    assert set(keyed) <= {f"{key}\t1" for key in KEYS}
    objects = [
        msgspec.json.decode(line) for line in shell.run("read", "--split", *planned, "--json").stdout.splitlines()
    ]
    assert sorted(row["text"] for row in objects) == sorted(map(event, range(EVENTS)))
    assert len(shell.run("read", "--split", *planned, "--limit", "7").stdout.splitlines()) == 7
    (line,) = shell.run("read", "--split", *planned, "--grep", '"wh": 123,').stdout.splitlines()
    assert line == event(123)
    assert shell.run("read", "--split", planned[-1], "-c", "1", "--format", r"%t\n").stdout.startswith("20")


def test_splits_of_slices_and_ranges(shell: Shell, manager: nadi.StreamManager, planned: list[str]) -> None:
    half = shell.run("splits", "home", "half", "--slice", "-n", "3", "--quiet")
    assert half.stderr == ""
    expected = sorted(map(event, range(EVENTS // 2, EVENTS)))
    assert sorted(shell.run("read", "--split", *half.stdout.split()).stdout.splitlines()) == expected
    at = manager.slices("home").get("half").start.as_text()
    first_half = shell.run("splits", "home", "plan", "--to", at, "-n", "2", "-q", "--on-damage", "skip").stdout.split()
    assert len(shell.run("read", "--split", *first_half).stdout.splitlines()) == EVENTS // 2
    assert shell.run("splits", "home", "plan", "--from", "tail", "-n", "2", "-q").stdout == ""
    splits_of_key = shell.run("splits", "home", "plan", "--key", "oven", "-n", "1", "-q").stdout.split()
    output = shell.run("read", "--split", *splits_of_key).stdout
    assert output.count('"oven"') == len(range(0, EVENTS, len(KEYS)))
    assert output.count("\n") < EVENTS


def test_ordered_splits_keep_each_key_in_one_split_in_order(shell: Shell, planned: list[str]) -> None:
    lines = shell.run("splits", "home", "plan", "-n", "2", "--ordered", "-q").stdout.split()
    for key in KEYS:
        outputs = [text for line in lines if f'"{key}"' in (text := shell.run("read", "--split", line).stdout)]
        assert len(outputs) == 1, key
        numbers = [msgspec.json.decode(text)["wh"] for text in outputs[0].splitlines() if f'"{key}"' in text]
        assert numbers == sorted(numbers)


def test_splits_are_read_by_xargs(shell: Shell, planned: list[str]) -> None:
    command = f"xargs -n 3 -P 2 {sys.executable} -m nadi.cli.app read --split --format '%o %S\\n'"
    done = subprocess.run(
        ["bash", "-c", command], input="\n".join(planned), capture_output=True, text=True, timeout=60, check=True
    )
    assert len(set(done.stdout.splitlines())) == EVENTS
    assert done.stderr == ""


def test_splits_include_credentials_only_on_request(
    shell: Shell, planned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("method", "Basic"), ("username", "ann"), ("password", "very-secret")):
        monkeypatch.setenv(f"pravega_client_auth_{name}", value)
    command = ("splits", "home", "plan", "-n", "1", "-q")
    assert Split.from_text(shell.run(*command).stdout.strip()).connection.credentials is None
    credentials = Split.from_text(shell.run(*command, "--with-credentials").stdout.strip()).connection.credentials
    assert credentials == nadi.Basic("ann", "very-secret")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("splits", "home", "plan"), "--max-bytes"),
        (("splits", "home", "plan", "-n", "20000"), "10,000"),
        (("splits", "home", "plan", "--max-bytes", "7d"), "'7d'"),
        (("splits", "home", "plan", "-n", "2", "--ordered", "--max-bytes", "1MB"), "max_bytes"),
        (("splits", "home", "half", "-n", "2", "--slice", "--to", "tail"), "--to"),
        (("splits", "home", "none", "-n", "2"), "home/none"),
        (("splits", "home", "none", "-n", "2", "--slice"), "'none'"),
        (("read", "--split", "none"), "none"),
        (("read", "--split", "x", "--json", "--format", "%s"), "--format"),
    ],
)
def test_invalid_splits_command_fails(shell: Shell, planned: list[str], words: tuple[str, ...], named: str) -> None:
    assert named in " ".join(shell.run(*words, code=None).stderr.split())


def test_read_split_prints_events_before_a_damaged_split_and_fails(shell: Shell, planned: list[str]) -> None:
    done = shell.run("read", "--split", planned[0], planned[1][:-6], code=2)
    assert done.stdout == shell.run("read", "--split", planned[0]).stdout
    with pytest.raises(InvalidArgumentError):
        Split.from_text(planned[1][:-6])
