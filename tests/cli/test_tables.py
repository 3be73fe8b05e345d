"""`nadi table` and `nadi transaction`: data, exit codes and the wording of their messages."""

from __future__ import annotations

from tests.cli.test_streams import Shell


def test_table_create_put_get_remove_delete(shell: Shell) -> None:
    assert "No key-value tables" in shell.run("table", "list", "home").output
    create = ["table", "create", "home", "rooms", "--key-bytes", "8", "--partitions", "2"]
    assert shell.run(*create).output == "created table home/rooms\n"
    assert "already exists" in shell.run(*create).output
    first = shell.run("table", "put", "home", "rooms", "kitchen", "warm").stdout.strip()
    second = shell.run("table", "put", "home", "rooms", "kitchen", "hot", "--if-version", first).stdout.strip()
    assert shell.run("table", "get", "home", "rooms", "kitchen").stdout == "hot\n"
    late = shell.run("table", "put", "home", "rooms", "kitchen", "cold", "--if-version", first, code=1)
    assert late.stderr == f"error: key kitchen has version {second}: nothing was changed\n"
    shell.run("table", "put", "home", "rooms", "kitchen", "cold", "--if-absent", code=1)
    assert (
        "key bath doesn't exist"
        in shell.run("table", "put", "home", "rooms", "bath", "x", "--if-version", first, code=1).stderr
    )
    shell.run("table", "put", "home", "rooms", "bath", '{"C": 21}', "--json", "--if-absent")
    shell.run("table", "put", "home", "rooms", "0x00ff", "-", "--hex", code=2, stdin=b"\xff")
    shell.run("table", "put", "home", "rooms", "00ff000000000000", "-", "--hex", stdin=b"\xff")
    assert shell.json("table", "entries", "home", "rooms")[1:] == [
        {
            "key": "bath",
            "secondary": None,
            "version": shell.json("table", "get", "home", "rooms", "bath")[0]["version"],
            "value": '{"C": 21}',
        },
        {"key": "kitchen", "secondary": None, "version": second, "value": "hot"},
    ]
    (odd,) = shell.json("table", "get", "home", "rooms", "00ff000000000000", "--hex")
    assert (odd["key"], odd["value"], odd["encoding"]) == ("0x00ff000000000000", "/w==", "base64")
    keys = [
        row["key"] for row in shell.json("table", "entries", "home", "rooms", "--keys-only", "--from", "b", "--to", "k")
    ]
    assert keys == ["bath", "kitchen"]
    some = shell.run("table", "entries", "home", "rooms", "--keys-only", "--limit", "2", "-o", "csv")
    assert some.stdout == "key,secondary\n0x00ff000000000000,\nbath,\n"
    assert some.stderr == "output is limited to 2 entries: raise --limit to see more\n"
    assert shell.json("table", "entries", "home", "rooms", "--keys-only", "--prefix", "q") == []
    (listed,) = shell.json("table", "list", "home")
    assert listed == {"table": "rooms", "entries": 3, "key bytes": 8, "secondary bytes": 0, "partitions": 2}
    for wrong, says in (
        (["put", "home", "rooms", "a", "{", "--json"], "not JSON"),
        (["put", "home", "rooms", "a", "b", "--if-absent", "--if-version", "0:1"], "can't be combined"),
        (["put", "home", "rooms", "a", "b", "--if-version", "x"], "'x'"),
        (["put", "home", "rooms", "far-too-long", "b"], "home/rooms"),
        (["put", "home", "rooms", "xyz", "b", "--hex"], "'xyz'"),
        (["get", "home", "rooms", "a"], "key 'a' doesn't exist"),
        (["get", "home", "rooms", "a", "--secondary", "b"], "--secondary can't be used"),
        (["entries", "home", "rooms", "--prefix", "a", "--to", "b"], "choose one"),
        (["get", "home", "none", "a"], "home/none"),
    ):
        assert says in shell.run("table", *wrong, code=None).stderr.replace("\n", " "), wrong
    remove = ["table", "remove", "home", "rooms", "kitchen"]
    assert "nothing was changed" in shell.run(*remove, "--if-version", first, code=1).stderr
    assert shell.run(*remove, "--if-version", second).output == "removed key kitchen\n"
    assert "key kitchen doesn't exist" in shell.run(*remove, code=1).stderr
    assert shell.run("table", "delete", "home", "rooms", code=1).output.startswith("Delete table home/rooms")
    assert shell.run("table", "delete", "home", "rooms", "--yes").output == "deleted table home/rooms\n"
    assert "table home/rooms doesn't exist" in shell.run("table", "delete", "home", "rooms", "--yes", code=1).stderr


def test_table_with_secondary_keys(shell: Shell) -> None:
    shell.run("table", "create", "home", "pairs", "--key-bytes", "4", "--secondary-bytes", "4")
    for secondary in ("x", "y"):
        shell.run("table", "put", "home", "pairs", "a", f"a{secondary}", "--secondary", secondary)
    shell.run("table", "put", "home", "pairs", "b", "b")
    entries = shell.json("table", "entries", "home", "pairs", "--primary", "a", "--from", "y")
    assert [(row["key"], row["secondary"], row["value"]) for row in entries] == [("a", "y", "ay")]
    assert shell.run("table", "entries", "home", "pairs", "--keys-only").output.split() == [
        "key",
        "secondary",
        "a",
        "x",
        "a",
        "y",
        "b",
        "-",
    ]


def test_transaction_begin_write_commit_abort(shell: Shell) -> None:
    shell.run("stream", "create", "home", "orders", "--segments", "2")
    txn = ["home", "orders"]
    first, second, third = (shell.run("transaction", "begin", *txn, "--lease", "1h").stdout.strip() for _ in range(3))
    done = shell.run("write", *txn, "--into", first, "--lease", "1d", "--key", "a", stdin=b"1\n2\n")
    assert done.stderr == "wrote 2 events, 2 bytes\n"
    shell.run("write", *txn, "--into", first, "--key", "a", stdin=b"3\n")
    shell.run("write", *txn, "--into", second, stdin=b"4\n")
    assert shell.json("transaction", "show", *txn, first) == [{"id": first, "state": "OPEN"}]
    assert (
        shell.run("transaction", "ping", *txn, second).output
        == f"renewed the lease of transaction {second} for 10min\n"
    )
    assert shell.run("read", *txn).stdout == ""
    assert shell.run("transaction", "commit", *txn, first).output == f"committed transaction {first}\n"
    assert shell.run("read", *txn).stdout == "1\n2\n3\n"
    assert shell.run("transaction", "commit", *txn, second, third).output == "committed 2 transactions\n"
    assert sorted(shell.run("read", *txn).stdout.split()) == ["1", "2", "3", "4"]
    lost = shell.run("transaction", "begin", *txn).stdout.strip()
    shell.run("write", *txn, "--into", lost, stdin=b"lost\n")
    assert shell.run("transaction", "abort", *txn, lost, code=1).output.startswith("Discard the events of")
    assert shell.run("transaction", "abort", *txn, lost, "--yes").output == f"aborted transaction {lost}\n"
    assert shell.json("transaction", "show", *txn, lost) == [{"id": lost, "state": "ABORTED"}]
    for wrong, says in (
        (["transaction", "commit", *txn, lost], "ABORTED"),
        (["write", *txn, "--lease", "1h"], "--lease can't be used without --into"),
        (["transaction", "abort", *txn, first, "--yes"], "COMMITTED"),
        (["transaction", "show", *txn, "mine"], "mine"),
        (["transaction", "show", *txn, "00000000-0000-0000-0000-000000000000"], "00000000-0000-0000-0000-000000000000"),
        (["transaction", "begin", *txn, "--lease", "1s"], "lease"),
        (["write", *txn, "--into", lost], "ABORTED"),
        (["write", *txn, "--into", first, "--transaction"], "--transaction can't be used with --into"),
    ):
        assert says in shell.run(*wrong, code=None, stdin=b"x\n").stderr.replace("\n", " "), wrong
