"""A server and a door for all Kafka tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import nadi
from nadi.standalone.embedded import EmbeddedServer

pytest.importorskip("kio", reason="no kio: pip install 'nadi[kafka]'")
pytest.importorskip("confluent_kafka", reason="no confluent-kafka: pip install confluent-kafka")

from tests.kafka.support import Door, running_door


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with nadi.embedded(tmp_path_factory.mktemp("data"), rest_port=0) as server:
        yield server


@pytest.fixture(scope="package")
def manager(server: EmbeddedServer) -> Iterator[nadi.StreamManager]:
    with nadi.StreamManager(server.controller_uri) as manager:
        yield manager


@pytest.fixture(scope="package")
def door(server: EmbeddedServer) -> Iterator[Door]:
    with running_door(server.controller_uri) as door:
        yield door
