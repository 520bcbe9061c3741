"""The methods of the API, with their request and response messages.

The descriptors of the services are not part of google-cloud-pubsub, so the list is written down here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from google.iam.v1 import iam_policy_pb2, policy_pb2
from google.protobuf.empty_pb2 import Empty
from google.protobuf.wrappers_pb2 import StringValue
from google.pubsub_v1 import types


class Method(NamedTuple):
    """The raw protobuf classes of a method. A streaming method has any number of requests and responses."""

    request: Any
    response: Any
    is_streaming: bool = False


Topic, Subscription, Snapshot = types.Topic.pb(), types.Subscription.pb(), types.Snapshot.pb()
Schema, SchemaSettings = types.Schema.pb(), types.SchemaSettings.pb()
PubsubMessage, ReceivedMessage = types.PubsubMessage.pb(), types.ReceivedMessage.pb()
PublishRequest, PublishResponse = types.PublishRequest.pb(), types.PublishResponse.pb()
PullResponse = types.PullResponse.pb()
StreamingPullRequest, StreamingPullResponse = types.StreamingPullRequest.pb(), types.StreamingPullResponse.pb()


def _methods(**responses: Any) -> dict[str, Method]:
    """Methods whose request is named after them; with None, the response is, too."""
    return {
        name: Method(getattr(types, f"{name}Request").pb(), response or getattr(types, f"{name}Response").pb())
        for name, response in responses.items()
    }


PUBLISHER: Mapping[str, Method] = {
    "CreateTopic": Method(Topic, Topic),
    **_methods(UpdateTopic=Topic, GetTopic=Topic, DeleteTopic=Empty, Publish=None, DetachSubscription=None),
    **_methods(ListTopics=None, ListTopicSubscriptions=None, ListTopicSnapshots=None),
}

SUBSCRIBER: Mapping[str, Method] = {
    "CreateSubscription": Method(Subscription, Subscription),
    **_methods(GetSubscription=Subscription, UpdateSubscription=Subscription, DeleteSubscription=Empty),
    **_methods(ListSubscriptions=None, ModifyPushConfig=Empty, Seek=None),
    **_methods(Pull=None, Acknowledge=Empty, ModifyAckDeadline=Empty),
    "StreamingPull": Method(StreamingPullRequest, StreamingPullResponse, is_streaming=True),
    **_methods(CreateSnapshot=Snapshot, GetSnapshot=Snapshot, UpdateSnapshot=Snapshot, DeleteSnapshot=Empty),
    **_methods(ListSnapshots=None),
}

SCHEMAS: Mapping[str, Method] = {
    **_methods(CreateSchema=Schema, GetSchema=Schema, CommitSchema=Schema, RollbackSchema=Schema, DeleteSchema=Empty),
    **_methods(DeleteSchemaRevision=Schema, ListSchemas=None, ListSchemaRevisions=None),
    **_methods(ValidateSchema=None, ValidateMessage=None),
}

IAM: Mapping[str, Method] = {
    "SetIamPolicy": Method(iam_policy_pb2.SetIamPolicyRequest, policy_pb2.Policy),
    "GetIamPolicy": Method(iam_policy_pb2.GetIamPolicyRequest, policy_pb2.Policy),
    "TestIamPermissions": Method(iam_policy_pb2.TestIamPermissionsRequest, iam_policy_pb2.TestIamPermissionsResponse),
}

# Not a part of Google's API: where the admin API of the server's store is, empty if it has none.
ADMIN: Mapping[str, Method] = {"GetAdminAddress": Method(Empty, StringValue)}

SERVICES: Mapping[str, Mapping[str, Method]] = {
    "google.pubsub.v1.Publisher": PUBLISHER,
    "google.pubsub.v1.Subscriber": SUBSCRIBER,
    "google.pubsub.v1.SchemaService": SCHEMAS,
    "google.iam.v1.IAMPolicy": IAM,
    "seriatim.v1.Admin": ADMIN,
}
