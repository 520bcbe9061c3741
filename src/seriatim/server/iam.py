"""The IAM service, for programs that call it. Policies are stored and returned, and decide nothing: access is configured with
the server's own tokens (``access``).
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from google.protobuf.json_format import MessageToDict, ParseDict

from seriatim.engine.broker import Broker, Document
from seriatim.errors import InvalidArgument
from seriatim.wire.services import IAM

KIND = "policy"
MAX_NAME_CHARACTERS = 1024
MAX_POLICY_BYTES = 64 * 1024


class IamService:
    """One method for each of the API's, by the same name."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def set_iam_policy(self, request: Any) -> Any:
        _check(request.resource)
        policy = request.policy
        if policy.ByteSize() > MAX_POLICY_BYTES:
            raise InvalidArgument(f"a policy has at most {MAX_POLICY_BYTES} bytes, not {policy.ByteSize()}")
        policy.etag = b""
        policy.etag = hashlib.sha256(policy.SerializeToString(deterministic=True)).digest()[:8]
        text = json.dumps(MessageToDict(policy, preserving_proto_field_name=True))
        await self._broker.put_document(Document(KIND, request.resource, text))
        return policy

    async def get_iam_policy(self, request: Any) -> Any:
        """An empty policy if none was set, whether the resource exists or not."""
        _check(request.resource)
        for document in await self._broker.list_documents(KIND):
            if document.name == request.resource:
                return ParseDict(json.loads(document.text), IAM["GetIamPolicy"].response(), ignore_unknown_fields=True)
        return IAM["GetIamPolicy"].response()

    async def test_iam_permissions(self, request: Any) -> Any:
        """Grants every permission that is asked about."""
        _check(request.resource)
        return IAM["TestIamPermissions"].response(permissions=request.permissions)


def _check(resource: str) -> None:
    if not 0 < len(resource) <= MAX_NAME_CHARACTERS or not resource.isprintable():
        raise InvalidArgument("name the resource: projects/PROJECT/topics/ID, or another one")
