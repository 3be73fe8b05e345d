"""What the OpenAPI description says is what the server does: thousands of requests made from it."""

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

EXAMPLES = int(os.environ.get("NADI_REST_EXAMPLES", "4"))  # for each endpoint, of what is right and of what is wrong


@pytest.fixture(scope="module")
def seeded(rest: httpx.Client) -> None:
    """Things for the requests to meet."""
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
        """Every other request speaks of what is there."""
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


@pytest.mark.timeout(600)  # most of a minute where nothing else runs
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
                continue  # it holds all that the others do
            if operation.path.endswith(("/tail", "/play")):
                continue  # they go on until their reader leaves: see tests/web
            if mode is GenerationMode.NEGATIVE and not (operation.query or operation.body):
                continue  # nothing in it can be wrong
            cases = operation.as_strategy(generation_mode=mode)
            relaxed = settings(max_examples=EXAMPLES, derandomize=True, suppress_health_check=list(HealthCheck))
            every: Any = relaxed(given(cases)(run))  # type: ignore[no-untyped-call]
            every()
    assert made > len(ENDPOINTS)
