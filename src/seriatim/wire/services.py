"""The methods of the API: which message each takes and gives.

The descriptors of the services are not part of google-cloud-pubsub, so the list is written down here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from google.iam.v1 import iam_policy_pb2, policy_pb2
from google.protobuf.empty_pb2 import Empty
from google.pubsub_v1 import types


class Method(NamedTuple):
    """Raw protobuf classes. A streaming method takes and gives any number of messages."""

    request: Any
    response: Any
    is_streaming: bool = False


Topic, Subscription, Snapshot = types.Topic.pb(), types.Subscription.pb(), types.Snapshot.pb()
Schema, SchemaSettings = types.Schema.pb(), types.SchemaSettings.pb()
PubsubMessage, ReceivedMessage = types.PubsubMessage.pb(), types.ReceivedMessage.pb()
PublishRequest, PublishResponse = types.PublishRequest.pb(), types.PublishResponse.pb()
PullResponse = types.PullResponse.pb()
StreamingPullRequest, StreamingPullResponse = types.StreamingPullRequest.pb(), types.StreamingPullResponse.pb()

PUBLISHER: Mapping[str, Method] = {
    "CreateTopic": Method(Topic, Topic),
    "UpdateTopic": Method(types.UpdateTopicRequest.pb(), Topic),
    "Publish": Method(PublishRequest, PublishResponse),
    "GetTopic": Method(types.GetTopicRequest.pb(), Topic),
    "ListTopics": Method(types.ListTopicsRequest.pb(), types.ListTopicsResponse.pb()),
    "ListTopicSubscriptions": Method(
        types.ListTopicSubscriptionsRequest.pb(), types.ListTopicSubscriptionsResponse.pb()
    ),
    "ListTopicSnapshots": Method(types.ListTopicSnapshotsRequest.pb(), types.ListTopicSnapshotsResponse.pb()),
    "DeleteTopic": Method(types.DeleteTopicRequest.pb(), Empty),
    "DetachSubscription": Method(types.DetachSubscriptionRequest.pb(), types.DetachSubscriptionResponse.pb()),
}

SUBSCRIBER: Mapping[str, Method] = {
    "CreateSubscription": Method(Subscription, Subscription),
    "GetSubscription": Method(types.GetSubscriptionRequest.pb(), Subscription),
    "UpdateSubscription": Method(types.UpdateSubscriptionRequest.pb(), Subscription),
    "ListSubscriptions": Method(types.ListSubscriptionsRequest.pb(), types.ListSubscriptionsResponse.pb()),
    "DeleteSubscription": Method(types.DeleteSubscriptionRequest.pb(), Empty),
    "ModifyAckDeadline": Method(types.ModifyAckDeadlineRequest.pb(), Empty),
    "Acknowledge": Method(types.AcknowledgeRequest.pb(), Empty),
    "Pull": Method(types.PullRequest.pb(), PullResponse),
    "StreamingPull": Method(StreamingPullRequest, StreamingPullResponse, is_streaming=True),
    "ModifyPushConfig": Method(types.ModifyPushConfigRequest.pb(), Empty),
    "GetSnapshot": Method(types.GetSnapshotRequest.pb(), Snapshot),
    "ListSnapshots": Method(types.ListSnapshotsRequest.pb(), types.ListSnapshotsResponse.pb()),
    "CreateSnapshot": Method(types.CreateSnapshotRequest.pb(), Snapshot),
    "UpdateSnapshot": Method(types.UpdateSnapshotRequest.pb(), Snapshot),
    "DeleteSnapshot": Method(types.DeleteSnapshotRequest.pb(), Empty),
    "Seek": Method(types.SeekRequest.pb(), types.SeekResponse.pb()),
}

SCHEMAS: Mapping[str, Method] = {
    "CreateSchema": Method(types.CreateSchemaRequest.pb(), Schema),
    "GetSchema": Method(types.GetSchemaRequest.pb(), Schema),
    "ListSchemas": Method(types.ListSchemasRequest.pb(), types.ListSchemasResponse.pb()),
    "ListSchemaRevisions": Method(types.ListSchemaRevisionsRequest.pb(), types.ListSchemaRevisionsResponse.pb()),
    "CommitSchema": Method(types.CommitSchemaRequest.pb(), Schema),
    "RollbackSchema": Method(types.RollbackSchemaRequest.pb(), Schema),
    "DeleteSchemaRevision": Method(types.DeleteSchemaRevisionRequest.pb(), Schema),
    "DeleteSchema": Method(types.DeleteSchemaRequest.pb(), Empty),
    "ValidateSchema": Method(types.ValidateSchemaRequest.pb(), types.ValidateSchemaResponse.pb()),
    "ValidateMessage": Method(types.ValidateMessageRequest.pb(), types.ValidateMessageResponse.pb()),
}

IAM: Mapping[str, Method] = {
    "SetIamPolicy": Method(iam_policy_pb2.SetIamPolicyRequest, policy_pb2.Policy),
    "GetIamPolicy": Method(iam_policy_pb2.GetIamPolicyRequest, policy_pb2.Policy),
    "TestIamPermissions": Method(iam_policy_pb2.TestIamPermissionsRequest, iam_policy_pb2.TestIamPermissionsResponse),
}

SERVICES: Mapping[str, Mapping[str, Method]] = {
    "google.pubsub.v1.Publisher": PUBLISHER,
    "google.pubsub.v1.Subscriber": SUBSCRIBER,
    "google.pubsub.v1.SchemaService": SCHEMAS,
    "google.iam.v1.IAMPolicy": IAM,
}
