"""The OpenAPI description matches the server's behaviour, tested with thousands of generated requests."""

from __future__ import annotations

import os
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode, checks
from schemathesis.specs.openapi import checks as openapi_checks

from nadi.controller.rest.own import MIGRATION_PATH
from nadi.controller.rest.server import ENDPOINTS
from nadi.standalone.embedded import EmbeddedServer
from tests.controller.rest.test_resources import create

EXAMPLES = int(os.environ.get("NADI_REST_EXAMPLES", "2"))  # per endpoint, both of valid and of invalid requests


@pytest.fixture(scope="module")
def seeded(rest: httpx.Client) -> None:
    """Resources that generated requests can hit."""
    rest.post("/v1/scopes", json={"scopeName": "seeded"})
    for stream in ("a", "b"):
        create(rest, "seeded", stream)


def _schema(server: EmbeddedServer) -> Any:
    schema = schemathesis.openapi.from_url(f"{server.rest_uri}/v1/openapi.json")
    known = {
        "scopeName": ["seeded"],
        "streamName": ["a", "b"],
        "readerGroupName": ["g"],
        "bookmarkName": ["mark"],
        "sliceName": ["slice"],
        "id": ["controller"],
    }

    @schema.hook
    def map_path_parameters(context: Any, path_parameters: dict[str, Any] | None) -> dict[str, Any] | None:
        """Point every other request at an existing resource."""
        for name, values in known.items():
            if path_parameters and len(str(path_parameters.get(name, ""))) % 2:
                path_parameters[name] = values[len(str(path_parameters[name])) // 2 % len(values)]
        return path_parameters

    return schema


CHECKS = [
    checks.not_a_server_error,
    openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance,
    openapi_checks.response_headers_conformance,
    openapi_checks.response_schema_conformance,
    openapi_checks.negative_data_rejection,
    openapi_checks.unsupported_method,
]


@pytest.mark.timeout(600)  # takes most of a minute on an idle machine
@pytest.mark.usefixtures("seeded")
def test_requests_made_from_the_description(server: EmbeddedServer) -> None:
    schema = _schema(server)
    made = 0

    def run(case: Any) -> None:
        nonlocal made
        made += 1
        case.call_and_validate(checks=CHECKS, timeout=60)

    for result in schema.get_all_operations():
        for mode in GenerationMode:
            operation = result.ok()
            if operation.path.startswith(MIGRATION_PATH):
                continue  # contains everything the others do
            if operation.path.endswith(("/tail", "/play")):
                continue  # endless until the reader disconnects: see tests/web
            if mode is GenerationMode.NEGATIVE and not (operation.query or operation.body):
                continue  # has no invalid requests
            cases = operation.as_strategy(generation_mode=mode)
            relaxed = settings(max_examples=EXAMPLES, derandomize=True, suppress_health_check=list(HealthCheck))
            every: Any = relaxed(given(cases)(run))  # type: ignore[no-untyped-call]
            every()
    assert made > len(ENDPOINTS)
