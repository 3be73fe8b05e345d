"""A catalog's password is named by a variable: none is kept in the store, and none is shown, also of a definition that
an earlier nadi kept with one."""

from __future__ import annotations

import time
import traceback
from pathlib import Path

import msgspec
import pytest

import nadi
import nadi.lake
from nadi.errors import InvalidArgumentError, NadiError
from nadi.lake import LakeDefinition, LakeStoppedError
from nadi.lake.record import LakeRecord, WriterReport
from nadi.lake.table.catalogs import catalog_properties, open_catalog
from nadi.lake.table.reaching import CATALOG, reaching
from nadi.lake.table.secrets import plain_secret, resolved, shown, without_secrets
from nadi.testing import RestartableServer

from .test_command import command
from .world import catalog_in, streams

PLAIN = {
    "uri": "postgresql+psycopg2://lake:sesame@db:5432/catalog",
    "warehouse": "s3://key:sesame@bucket/lake",
    "s3.endpoint": "https://store/?sslpassword=sesame",
    "s3.secret-access-key": "sesame",
    "adls.account-key": "sesame",
    "adls.connection-string": "AccountName=a;AccountKey=sesame",
    "header.Authorization": "Basic sesame",
}
ODD_PASSWORDS = (
    "postgresql://u:a@sesame@h/c",
    "postgresql://u:a/sesame@h/c",
    "postgresql://:sesame@h",
    "x://u:1sesame@h",
)
NO_PASSWORD = (
    "postgresql://lake:${SECRET}@db/catalog",
    "postgresql://lake@db/catalog",
    "sqlite:////lake/catalog.db",
    "https://lake.example.org:8181/ws@v1?sslkey=/etc/key.pem",
    "https://[::1]:8181/v1",
    "s3://bucket/a:b/c@d",
)


@pytest.mark.parametrize("name", PLAIN)
def test_a_secret_in_plain_text_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"'{name}' has a (secret|password).*\$\{{NAME\}}") as refused:
        catalog_properties({"type": "sql", name: PLAIN[name]})
    assert "sesame" not in str(refused.value)
    assert "sesame" not in str(shown(PLAIN))


def test_what_a_password_is() -> None:
    for uri in ODD_PASSWORDS:
        assert plain_secret("uri", uri) == "a password", uri
        assert "sesame" not in without_secrets(f"can't reach '{uri}' now"), uri
    for uri in NO_PASSWORD:
        assert plain_secret("uri", uri) is None, uri
        assert without_secrets(uri) == uri
    for uri in ("postgresql://u:my sesame@h/c", "postgresql://us?er:sesame@h/c"):  # as SQLAlchemy reads them
        assert plain_secret("uri", uri) == "a password"
        assert "sesame" not in str(shown({"uri": uri}))
    for query in ("%70assword=sesame", "pass=my sesame", "x=1&PWD=it's#sesame"):
        assert plain_secret("uri", f"postgresql://h/c?{query}") == "a password"
        assert "sesame" not in str(shown({"uri": f"postgresql://h/c?{query}"}))
    half = "AccountName=${NAME};AccountKey=sesame"
    assert plain_secret("adls.connection-string", half) == "a password"
    assert "sesame" not in str(shown({"adls.connection-string": half}))
    assert plain_secret("adls.connection-string", "AccountName=a;AccountKey=${KEY}") is None
    assert plain_secret("passphrase", "sesame") == "a secret"
    assert plain_secret("uri", "postgresql://lake:half${SECRET}@db/catalog") == "a password"
    assert catalog_properties({"header.X-Iceberg-Access-Delegation": "vended-credentials"})


def test_a_variable_is_a_password_as_it_is() -> None:
    given = {"uri": "postgresql://lake:${PW}@db/${PW}", "token": "${PW}"}
    found, secrets = resolved(given, {"PW": "p@ss/w:rd"}.__getitem__)
    assert found == {"uri": "postgresql://lake:p%40ss%2Fw%3Ard@db/p@ss/w:rd", "token": "p@ss/w:rd"}
    assert "w:rd" not in without_secrets("p@ss/w:rd and p%40ss%2Fw%3Ard", secrets)


def test_a_password_that_an_address_quotes_is_one_in_either_form() -> None:
    _, secrets = resolved({"uri": "${URI}"}, {"URI": "postgresql://lake:p%40sesame@db/c"}.__getitem__)
    assert without_secrets("p%40sesame p@sesame", secrets) == "*** ***"


@pytest.mark.parametrize("text", ["://a:" * 60_000, "x@" + "://a:b" * 60_000, "?a=" * 60_000])
def test_what_looks_like_many_addresses_takes_no_long_time(text: str) -> None:
    """Such a text is in a record that anybody wrote who may write there, and lists show it."""
    began = time.process_time()
    assert without_secrets(text) == text
    assert shown({"uri": text}) == {"uri": text}
    assert time.process_time() - began < 5  # milliseconds; it was minutes


def test_errors_of_the_catalog_dont_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyiceberg")
    monkeypatch.setenv("PW", "sesame")
    for uri in (
        "postgresql+nosuch://lake:${PW}@db/c",
        "sesame${PW}",
        "post gres://lake:${PW}@db",
        "mysql://u:${PW}@h:x/c",
    ):
        with pytest.raises(NadiError) as told:
            open_catalog({"type": "sql", "uri": uri})
        assert "sesame" not in "".join(traceback.format_exception(told.value)), uri
    from pyiceberg.exceptions import RESTError

    with pytest.raises(LakeStoppedError) as stopped, reaching(CATALOG):
        raise RESTError("of https://lake:sesame@host/v1/config")
    assert "https://lake:***@host" in str(stopped.value)
    assert "sesame" not in "".join(traceback.format_exception(stopped.value))


def test_none_is_kept_and_none_of_before_is_shown(
    nadi_server: RestartableServer, manager: nadi.StreamManager, scope: str, tmp_path: Path
) -> None:
    uri = nadi_server.controller_uri
    streams(manager, scope)
    words = (
        "run",
        scope,
        "meters",
        "--table",
        "home.meters",
        "--define-only",
        "--catalog",
        "type=sql",
        "--catalog",
    )
    refused = command(uri, *words, f"uri={PLAIN['uri']}")
    assert refused.exit_code == 1
    assert "${NAME}" in refused.output
    assert "sesame" not in refused.output
    assert nadi.lake.lakes_of(manager, scope) == {}
    assert command(uri, *words, "uri=postgresql://lake:${LAKE_PW}@db/catalog").exit_code == 0
    assert "${LAKE_PW}" in command(uri, "status", scope, "meters-lake").output

    before = nadi.lake.lakes_of(manager, scope)["meters-lake"]
    values = {name: getattr(before.definition, name) for name in before.definition.__struct_fields__}
    old = LakeDefinition(**(values | {"catalog": {"type": "sql", **PLAIN}}))
    assert "sesame" not in repr(old)
    said = WriterReport("host", 1, 1 << 43, 1 << 43, "stopped", trouble=f"can't reach {PLAIN['uri']}")
    record = LakeRecord(old, start=before.start, writers={"one": said})
    manager.table(scope, "_RGmeters-lake").put(b"lake", msgspec.msgpack.encode(record))
    for asked in (
        ("list", scope, "--json"),
        ("status", scope, "meters-lake"),
        ("status", scope, "meters-lake", "--json"),
        ("rebuild", scope, "meters-lake", "made"),
        ("run", scope, "meters", "--once"),
        ("run", scope, "meters", "--table", "home.others"),
    ):
        done = command(uri, *asked)
        assert "sesame" not in done.output + str(done.exception), asked
        assert "meters" in done.output or done.exit_code == 1
    assert "sesame" not in repr(nadi.lake.status(manager, scope, "meters-lake"))
    assert "sesame" not in repr(nadi.lake.lakes_of(manager, scope))
    properties = [word for key, value in catalog_in(tmp_path).items() for word in ("--catalog", f"{key}={value}")]
    assert command(uri, "run", scope, "meters", *properties, "--define-only").exit_code == 0
    held = manager.table(scope, "_RGmeters-lake").get(b"lake")
    assert held is not None
    assert b"sesame" not in held.value
