"""The API fuzzed from its own description: whatever is sent, the server does not fail, and answers as it is described."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance

from seriatim.console import security
from tests.console.consoles import OPERATOR, Running, running

ENDLESS = ("GET", "/api/v1/events")
judged = Counter[tuple[str, str]]()
"""How many answers of each operation were compared with the description."""


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(security, "REQUESTS_AT_ONCE", 1_000_000)  # what is refused unread would not be judged
        with running(tmp_path_factory.mktemp("fuzz")) as one:
            yield one
            paths = one.api("openapi.json").json["paths"]
            described = {(method.upper(), path) for path in paths for method in paths[path]}
            assert described - judged.keys() == {ENDLESS}


@pytest.fixture
def api(console: Running) -> schemathesis.schemas.BaseSchema:
    description = console.api("openapi.json").json
    del description["paths"][ENDLESS[1]]
    found = schemathesis.openapi.from_dict(json.loads(json.dumps(description)))
    found.config.update(base_url=console.address)
    return found


schema = schemathesis.pytest.from_fixture("api")


@schema.parametrize()
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck), database=None)
def test_no_request_makes_the_server_fail(case):
    answer = case.call(headers={"Authorization": f"Bearer {OPERATOR}"})
    assert answer.status_code != 429
    case.validate_response(answer, checks=(not_a_server_error, response_schema_conformance))
    judged[case.method.upper(), case.path] += 1
