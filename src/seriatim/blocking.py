"""The blocking API: the classes of the async API for programs without an event loop.

``PubSub.blocking(...)`` returns a ``PubSub`` of this module. Handlers are plain functions that may block, ``publish`` returns a
``concurrent.futures.Future``, ``async with`` becomes ``with`` and ``async for`` becomes ``for``.
"""

from seriatim.client.blocking import Message, MessageStream, PubSub, Subscription, Topic

__all__ = ["Message", "MessageStream", "PubSub", "Subscription", "Topic"]
