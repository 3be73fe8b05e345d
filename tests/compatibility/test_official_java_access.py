"""The official Java client as a user of a server with authentication, over TLS.

A selection of the tests in `java` that covers all its parts runs as a user with all rights. AccessTest covers the other
users' rights.
"""

from __future__ import annotations

import pytest

import nadi
from nadi.standalone import ServerSecurity
from tests.access.support import PASSWORD, certificate, users_file
from tests.compatibility.java_run import FIRST_JAVA_TIMEOUT_S, JavaRun

GRANTS = {
    "root": "prn::*,READ_UPDATE",
    "reader": "prn::/,READ;prn::/scope:*,READ",
    "stranger": "prn::/scope:other,READ_UPDATE;prn::/scope:other/*,READ_UPDATE",
}
TESTS = [
    "AccessTest.aReaderMayLookButNotChange",
    "AccessTest.aReaderMayReadInAGroupAndLearnTimes",
    "AccessTest.aStrangerIsRefused",
    "AccessTest.aWrongPasswordIsRefused",
    "EventsTest.eventsOfAKeyKeepTheirOrderWhileTheStreamIsScaled",
    "EventsTest.largerEventsAreWrittenInPieces",
    "ReaderGroupsTest.eventsOfAKeyAreReadInOrderAcrossScalesToTheEnd",
    "SlicesTest.aSliceGoesOverScales",
    "StreamsTest.aTruncatedStreamBeginsAtTheCut",
    "SynchronizerTest.twoClientsAgreeOnWhatTheyCounted",
    "TablesTest.iteratorsGoOverAllPartitions",
    "TransactionsTest.aTransactionThatOutlivesAScaleIsTakenUpAndCommitted",
    "ByteStreamsTest.truncatedBytesAreGoneAndTheOthersKeepTheirOffsets",
]
TOKEN_LIFETIME_S = 20  # the client renews its tokens meanwhile


@pytest.fixture(scope="module")
def secure_run(tmp_path_factory: pytest.TempPathFactory) -> JavaRun:
    folder = tmp_path_factory.mktemp("secure")
    tls = certificate(folder / "tls", "localhost")
    security = ServerSecurity(
        users_file=str(users_file(folder / "settings", GRANTS)),
        token_lifetime_s=TOKEN_LIFETIME_S,
        tls_certificate=str(tls.certificate),
        tls_key=str(tls.key),
    )
    with nadi.embedded(folder / "data", security=security, advertised_host="localhost") as server:
        properties = {
            "uri": server.controller_uri,
            "truststore": str(tls.authority),
            "username": "root",
            "password": PASSWORD,
        }
        return JavaRun(TESTS, properties, tmp_path_factory.mktemp("surefire"))


@pytest.mark.compatibility
@pytest.mark.timeout(FIRST_JAVA_TIMEOUT_S)
@pytest.mark.parametrize("name", TESTS)
def test_java_with_credentials(name: str, secure_run: JavaRun) -> None:
    secure_run.check(name)
