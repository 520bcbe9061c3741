"""The IAM service, for programs that ask. It is permissive: policies are kept and given back, and decide nothing.

Who may do what is not this service's business; see the options of the server.
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
LONGEST_NAME = 1024
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
        """An empty policy where none was set, whether there is such a resource or not."""
        _check(request.resource)
        for document in await self._broker.list_documents(KIND):
            if document.name == request.resource:
                return ParseDict(json.loads(document.text), IAM["GetIamPolicy"].response(), ignore_unknown_fields=True)
        return IAM["GetIamPolicy"].response()

    async def test_iam_permissions(self, request: Any) -> Any:
        """Everybody may do everything that he asks for."""
        _check(request.resource)
        return IAM["TestIamPermissions"].response(permissions=request.permissions)


def _check(resource: str) -> None:
    if not 0 < len(resource) <= LONGEST_NAME or not resource.isprintable():
        raise InvalidArgument("name the resource: projects/PROJECT/topics/ID, or another one")
