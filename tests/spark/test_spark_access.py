"""Spark with a server that requires credentials and TLS."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import nadi
from nadi.spark.options.parsed import ReadOptions
from tests.access.support import PASSWORD, certificate, guarded, user


def options(**more: str) -> ReadOptions:
    return ReadOptions.from_spark({"scope": "home", "stream": "meters", **more})


def test_options() -> None:
    plain = options().controller
    assert (plain.credentials, plain.trust_store, plain.validate_host_name) == (None, None, True)
    ann = options(auth_user="ann", auth_password="secret", trust_store="ca.pem", validate_host_name="False")
    assert ann.controller.credentials == nadi.Basic("ann", "secret")
    assert (ann.controller.trust_store, ann.controller.validate_host_name) == ("ca.pem", False)
    assert "secret" not in repr(ann)
    assert options(auth_token="secret").controller.credentials == nadi.Bearer("secret")
    files = {"auth_certificate": "ann.pem", "auth_key": "ann.key"}
    assert options(**files).controller.credentials == nadi.ClientCertificate("ann.pem", "ann.key")
    both = nadi.ClientCertificate("ann.pem", "ann.key", nadi.Bearer("secret"))
    assert options(**files, auth_token="secret").controller.credentials == both


@pytest.mark.slow  # a second Spark session: a minute
@pytest.mark.spark
def test_spark_with_credentials_over_tls(spark: Any, tmp_path: Path) -> None:
    tls = certificate(tmp_path / "tls")
    with guarded(tmp_path, tls=tls) as server:
        uri = server.controller_uri
        with nadi.StreamManager(uri, credentials=user("root"), trust_store=tls.authority) as manager:
            manager.create_scope("home")
            for stream in ("meters", "copy"):
                manager.create_stream("home", stream, 2)
            with manager.create_writer("home", "meters") as writer:
                writer.write_batch([b"%d" % number for number in range(100)])

            def home(name: str, stream: str) -> dict[str, str]:
                shown = {"auth_user": name, "auth_password": PASSWORD, "trust_store": str(tls.authority)}
                return {"controller": uri, "scope": "home", "stream": stream, **shown}

            rows = spark.readStream.format("nadi").options(**home("reader", "meters")).load().select("event")
            query = (
                rows.writeStream.format("nadi")
                .options(**home("writer", "copy"))
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
            copied = spark.read.format("nadi").options(**home("reader", "copy")).load().collect()
            assert sorted(int(bytes(row.event)) for row in copied) == list(range(100))
            with pytest.raises(Exception, match="READ on prn::/scope:home/stream:meters"):
                spark.read.format("nadi").options(**home("stranger", "meters")).load().collect()
