"""A catalog's password must be a variable: it is neither stored nor shown."""

from __future__ import annotations

import time
import traceback

import pytest

import nadi
import nadi.lake
from nadi.errors import InvalidArgumentError, NadiError
from nadi.lake import LakeStoppedError
from nadi.lake.table.catalogs import catalog_properties, open_catalog
from nadi.lake.table.error_mapping import CATALOG, mapped_errors, plain_secret, resolved, without_secrets
from nadi.testing import RestartableServer

from .test_command import command
from .world import Meters

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
def test_catalog_properties_reject_plain_secrets(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"'{name}'") as refused:
        catalog_properties({"type": "sql", name: PLAIN[name]})
    assert "sesame" not in str(refused.value)


def test_plain_secret_finds_passwords_in_addresses() -> None:
    for uri in ODD_PASSWORDS:
        assert plain_secret("uri", uri) == "a password", uri
        assert "sesame" not in without_secrets(f"can't reach '{uri}' now"), uri
    for uri in NO_PASSWORD:
        assert plain_secret("uri", uri) is None, uri
        assert without_secrets(uri) == uri
    for uri in ("postgresql://u:my sesame@h/c", "postgresql://us?er:sesame@h/c"):  # as read by SQLAlchemy
        assert plain_secret("uri", uri) == "a password"
    for query in ("%70assword=sesame", "pass=my sesame", "x=1&PWD=it's#sesame"):
        assert plain_secret("uri", f"postgresql://h/c?{query}") == "a password"
    half = "AccountName=${NAME};AccountKey=sesame"
    assert plain_secret("adls.connection-string", half) == "a password"
    assert plain_secret("adls.connection-string", "AccountName=a;AccountKey=${KEY}") is None
    assert plain_secret("passphrase", "sesame") == "a secret"
    assert plain_secret("uri", "postgresql://lake:half${SECRET}@db/catalog") == "a password"
    assert catalog_properties({"header.X-Iceberg-Access-Delegation": "vended-credentials"})


def test_resolved_quotes_variables_in_addresses() -> None:
    given = {"uri": "postgresql://lake:${PW}@db/${PW}", "token": "${PW}"}
    found, secrets = resolved(given, {"PW": "p@ss/w:rd"}.__getitem__)
    assert found == {"uri": "postgresql://lake:p%40ss%2Fw%3Ard@db/p@ss/w:rd", "token": "p@ss/w:rd"}
    assert "w:rd" not in without_secrets("p@ss/w:rd and p%40ss%2Fw%3Ard", secrets)


def test_without_secrets_masks_quoted_passwords() -> None:
    _, secrets = resolved({"uri": "${URI}"}, {"URI": "postgresql://lake:p%40sesame@db/c"}.__getitem__)
    assert without_secrets("p%40sesame p@sesame", secrets) == "*** ***"


@pytest.mark.parametrize("text", ["://a:" * 60_000, "x@" + "://a:b" * 60_000, "?a=" * 60_000])
def test_without_secrets_takes_linear_time(text: str) -> None:
    """Errors of other libraries may contain such text."""
    began = time.process_time()
    assert without_secrets(text) == text
    assert time.process_time() - began < 5  # milliseconds; it was minutes


def test_catalog_errors_contain_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyiceberg")
    monkeypatch.setenv("PW", "sesame")
    for uri in (
        "postgresql+nosuch://lake:${PW}@db/c",
        "sesame${PW}",
        "post gres://lake:${PW}@db",
        "mysql://u:${PW}@h:x/c",
    ):
        with pytest.raises(NadiError) as raised:
            open_catalog({"type": "sql", "uri": uri})
        assert "sesame" not in "".join(traceback.format_exception(raised.value)), uri
    from pyiceberg.exceptions import RESTError

    with pytest.raises(LakeStoppedError) as stopped, mapped_errors(CATALOG):
        raise RESTError("of https://lake:sesame@host/v1/config")
    assert "https://lake:***@host" in str(stopped.value)
    assert "sesame" not in "".join(traceback.format_exception(stopped.value))


def test_lake_command_stores_no_secret(nadi_server: RestartableServer, meters: Meters) -> None:
    uri = nadi_server.controller_uri
    words = f"run {meters.scope} meters --table home.meters --define-only --catalog type=sql --catalog".split()
    refused = command(uri, *words, f"uri={PLAIN['uri']}")
    assert refused.exit_code == 2
    assert "${NAME}" in refused.output
    assert "sesame" not in refused.output
    assert nadi.lake.lakes_of(meters.manager, meters.scope) == ({}, [])
    assert command(uri, *words, "uri=postgresql://lake:${LAKE_PW}@db/catalog").exit_code == 0
    assert "${LAKE_PW}" in command(uri, "status", meters.scope, "meters-lake").output
