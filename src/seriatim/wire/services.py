"""The methods of the API: which message each takes and gives.

The descriptors of the services are not part of google-cloud-pubsub, so the list is written down here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from google.protobuf.empty_pb2 import Empty
from google.pubsub_v1 import types


class Method(NamedTuple):
    """Raw protobuf classes. A streaming method takes and gives any number of messages."""

    request: Any
    response: Any
    is_streaming: bool = False


Topic, Subscription, Snapshot = types.Topic.pb(), types.Subscription.pb(), types.Snapshot.pb()
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

SERVICES: Mapping[str, Mapping[str, Method]] = {
    "google.pubsub.v1.Publisher": PUBLISHER,
    "google.pubsub.v1.Subscriber": SUBSCRIBER,
}
