"""`nadi splits` and `nadi read --split`: a plan as lines, and who reads them."""

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
    """Lines for stream home/plan, whose slice "half" has the second half of it."""
    manager.create_stream("home", "plan", 3)
    cuts = manager.cuts("home", "plan")
    with manager.create_writer("home", "plan") as writer:
        for number in range(EVENTS):
            writer.write_event(event(number).encode(), KEYS[number % len(KEYS)])
            if number == EVENTS // 2 - 1:
                writer.flush(60)
                middle = cuts.tail()
    manager.slices("home").create("half", middle, cuts.tail())
    made = shell.run("splits", "home", "plan", "--max-bytes", "20KB")
    assert made.stderr.startswith(f"{len(made.stdout.splitlines())} splits of home/plan, ")
    return made.stdout.splitlines()


def test_together_the_lines_have_each_event_once(shell: Shell, planned: list[str]) -> None:
    assert len(planned) > 4
    by_arguments = shell.run("read", "--split", *planned).stdout.splitlines()
    by_pipe = shell.run("read", "--split", stdin="\n".join(planned).encode()).stdout.splitlines()
    assert by_arguments == by_pipe
    assert sorted(by_pipe) == sorted(map(event, range(EVENTS)))
    one = [shell.run("read", "--split", line).stdout.splitlines() for line in planned]
    assert [line for lines in one for line in lines] == by_pipe


def test_what_hadoop_writes_before_a_line_is_left_out(shell: Shell, planned: list[str]) -> None:
    fed = "".join(f"{number * 300}\t{line}\n" for number, line in enumerate(planned))
    assert len(shell.run("read", "--split", stdin=fed.encode()).stdout.splitlines()) == EVENTS
    assert shell.run("read", "--split", stdin=b"").stdout == ""


def test_events_are_printed_as_they_are_by_read(shell: Shell, planned: list[str]) -> None:
    keyed = shell.run("read", "--split", planned[0], "--format", r"%k\t1\n", "--key-field", "meter").stdout.splitlines()
    assert set(keyed) <= {f"{key}\t1" for key in KEYS}
    objects = [
        msgspec.json.decode(line) for line in shell.run("read", "--split", *planned, "--json").stdout.splitlines()
    ]
    assert sorted(one["text"] for one in objects) == sorted(map(event, range(EVENTS)))
    assert len(shell.run("read", "--split", *planned, "--limit", "7").stdout.splitlines()) == 7
    (found,) = shell.run("read", "--split", *planned, "--grep", '"wh": 123,').stdout.splitlines()
    assert found == event(123)
    assert shell.run("read", "--split", planned[-1], "-c", "1", "--format", r"%t\n").stdout.startswith("20")


def test_stretches(shell: Shell, manager: nadi.StreamManager, planned: list[str]) -> None:
    half = shell.run("splits", "home", "half", "--slice", "-n", "3", "--quiet")
    assert half.stderr == ""
    expected = sorted(map(event, range(EVENTS // 2, EVENTS)))
    assert sorted(shell.run("read", "--split", *half.stdout.split()).stdout.splitlines()) == expected
    at = manager.slices("home").get("half").start.as_text()
    begun = shell.run("splits", "home", "plan", "--to", at, "-n", "2", "-q", "--on-damage", "skip").stdout.split()
    assert len(shell.run("read", "--split", *begun).stdout.splitlines()) == EVENTS // 2
    assert shell.run("splits", "home", "plan", "--from", "tail", "-n", "2", "-q").stdout == ""
    of_a_key = shell.run("splits", "home", "plan", "--key", "oven", "-n", "1", "-q").stdout.split()
    found = shell.run("read", "--split", *of_a_key).stdout
    assert found.count('"oven"') == len(range(0, EVENTS, len(KEYS)))
    assert found.count("\n") < EVENTS


def test_a_keys_events_are_in_one_split_in_order(shell: Shell, planned: list[str]) -> None:
    lines = shell.run("splits", "home", "plan", "-n", "2", "--ordered", "-q").stdout.split()
    for key in KEYS:
        found = [text for line in lines if f'"{key}"' in (text := shell.run("read", "--split", line).stdout)]
        assert len(found) == 1, key
        mine = [msgspec.json.decode(one)["wh"] for one in found[0].splitlines() if f'"{key}"' in one]
        assert mine == sorted(mine)


def test_a_pipe_of_processes(shell: Shell, planned: list[str]) -> None:
    command = f"xargs -n 3 -P 2 {sys.executable} -m nadi.cli.app read --split --format '%o %S\\n'"
    done = subprocess.run(
        ["bash", "-c", command], input="\n".join(planned), capture_output=True, text=True, timeout=60, check=True
    )
    assert len(set(done.stdout.splitlines())) == EVENTS
    assert done.stderr == ""


def test_credentials_are_left_out_unless_asked_for(
    shell: Shell, planned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("method", "Basic"), ("username", "ann"), ("password", "very-secret")):
        monkeypatch.setenv(f"pravega_client_auth_{name}", value)
    asked = ("splits", "home", "plan", "-n", "1", "-q")
    assert Split.from_text(shell.run(*asked).stdout.strip()).connection.credentials is None
    found = Split.from_text(shell.run(*asked, "--with-credentials").stdout.strip()).connection.credentials
    assert found == nadi.Basic("ann", "very-secret")


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (("splits", "home", "plan"), "say how many splits"),
        (("splits", "home", "plan", "-n", "20000"), "from 1 to 10,000 splits"),
        (("splits", "home", "plan", "--max-bytes", "7d"), "is an age: give a size"),
        (("splits", "home", "plan", "-n", "2", "--ordered", "--max-bytes", "1MB"), "max_bytes has no effect"),
        (("splits", "home", "half", "-n", "2", "--slice", "--to", "tail"), "--to has no effect with --slice"),
        (("splits", "home", "none", "-n", "2"), "stream home/none"),
        (("splits", "home", "none", "-n", "2", "--slice"), "slice 'none'"),
        (("read", "--split", "none"), "is not the text of a split"),
        (("read", "--split", "x", "--json", "--format", "%s"), "exclude each other"),
    ],
)
def test_what_is_wrong(shell: Shell, planned: list[str], words: tuple[str, ...], wrong: str) -> None:
    assert wrong in " ".join(shell.run(*words, code=1).stderr.split())


def test_a_damaged_plan_prints_what_is_whole_and_fails(shell: Shell, planned: list[str]) -> None:
    done = shell.run("read", "--split", planned[0], planned[1][:-6], code=1)
    assert done.stdout == shell.run("read", "--split", planned[0]).stdout
    assert "is not the text of a split" in done.stderr
    with pytest.raises(InvalidArgumentError):
        Split.from_text(planned[1][:-6])
