"""A catalog's password is named by a variable: none is kept in the store, and none is shown."""

from __future__ import annotations

import time
import traceback

import pytest

import nadi
import nadi.lake
from nadi.errors import InvalidArgumentError, NadiError
from nadi.lake import LakeStoppedError
from nadi.lake.table.catalogs import catalog_properties, open_catalog
from nadi.lake.table.error_mapping import CATALOG, plain_secret, reaching, resolved, without_secrets
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
def test_a_secret_in_plain_text_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"'{name}' has a (secret|password).*\$\{{NAME\}}") as refused:
        catalog_properties({"type": "sql", name: PLAIN[name]})
    assert "sesame" not in str(refused.value)


def test_what_a_password_is() -> None:
    for uri in ODD_PASSWORDS:
        assert plain_secret("uri", uri) == "a password", uri
        assert "sesame" not in without_secrets(f"can't reach '{uri}' now"), uri
    for uri in NO_PASSWORD:
        assert plain_secret("uri", uri) is None, uri
        assert without_secrets(uri) == uri
    for uri in ("postgresql://u:my sesame@h/c", "postgresql://us?er:sesame@h/c"):  # as SQLAlchemy reads them
        assert plain_secret("uri", uri) == "a password"
    for query in ("%70assword=sesame", "pass=my sesame", "x=1&PWD=it's#sesame"):
        assert plain_secret("uri", f"postgresql://h/c?{query}") == "a password"
    half = "AccountName=${NAME};AccountKey=sesame"
    assert plain_secret("adls.connection-string", half) == "a password"
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
    """Such a text is in an error of others."""
    began = time.process_time()
    assert without_secrets(text) == text
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


def test_none_is_kept(nadi_server: RestartableServer, meters: Meters) -> None:
    uri = nadi_server.controller_uri
    words = f"run {meters.scope} meters --table home.meters --define-only --catalog type=sql --catalog".split()
    refused = command(uri, *words, f"uri={PLAIN['uri']}")
    assert refused.exit_code == 1
    assert "${NAME}" in refused.output
    assert "sesame" not in refused.output
    assert nadi.lake.lakes_of(meters.manager, meters.scope) == ({}, [])
    assert command(uri, *words, "uri=postgresql://lake:${LAKE_PW}@db/catalog").exit_code == 0
    assert "${LAKE_PW}" in command(uri, "status", meters.scope, "meters-lake").output
