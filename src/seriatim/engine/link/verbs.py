"""The calls of the link: every verb of ``Broker``, taken from its signature, and how values are encoded by it.

A new method of ``Broker`` needs no change here. These are not calls, because they mean something else at each end: ``attach``
(which opens a channel), ``require_topic`` (which needs an answer at once), and ``close``.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from inspect import BoundArguments, Signature
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from seriatim.engine.broker import Broker, Outgoing
from seriatim.engine.link.codec import NAMES, Blobs, Codec, Packed, codec_of
from seriatim.errors import InvalidArgument

_OWN_MEANING = {"close"}


class Verb(NamedTuple):
    """A call: its name, and how its arguments and its answer are packed."""

    name: str
    signature: Signature
    arguments: Mapping[str, Codec]
    answer: Codec

    def pack_arguments(self, *given: Any, **named: Any) -> Packed:
        bound = self.signature.bind(*given, **named)
        blobs: list[bytes] = []
        return Packed({name: self.arguments[name].pack(value, blobs) for name, value in bound.arguments.items()}, blobs)

    def unpack_arguments(self, packed: Packed) -> BoundArguments:
        """Raises InvalidArgument if they are not the arguments of this method."""
        values, blobs = _unpacking(packed)
        bound = self.signature.bind_partial()
        for name, codec in self.arguments.items():  # in the order in which they were packed
            if name in values:
                bound.arguments[name] = codec.unpack(values[name], blobs)
        if missing := _required(self.signature) - bound.arguments.keys():
            raise InvalidArgument(f"{self.name} needs {', '.join(sorted(missing))}")
        return bound

    def pack_answer(self, value: Any) -> Packed:
        blobs: list[bytes] = []
        return Packed(self.answer.pack(value, blobs), blobs)

    def unpack_answer(self, packed: Packed) -> Any:
        assert isinstance(packed.blobs, Blobs)
        return self.answer.unpack(packed.json, packed.blobs)


def _unpacking(packed: Packed) -> tuple[dict[str, Any], Blobs]:
    if not isinstance(packed.json, dict):
        raise InvalidArgument("arguments must be an object")
    assert isinstance(packed.blobs, Blobs)
    return packed.json, packed.blobs


def _required(signature: Signature) -> set[str]:
    return {name for name, parameter in signature.parameters.items() if parameter.default is parameter.empty}


def _verb(name: str, method: Callable[..., Any]) -> Verb:
    hints = get_type_hints(method, localns=NAMES)
    answer = hints.pop("return")
    if get_origin(answer) is asyncio.Future:
        (answer,) = get_args(answer)
    signature = inspect.signature(method)
    myself = next(iter(signature.parameters))
    signature = signature.replace(
        parameters=[parameter for parameter in signature.parameters.values() if parameter.name != myself]
    )
    return Verb(name, signature, {name: codec_of(hints[name]) for name in signature.parameters}, codec_of(answer))


def _is_asked(name: str, method: object) -> bool:
    return name == "publish" or (inspect.iscoroutinefunction(method) and name not in _OWN_MEANING)


VERBS: Mapping[str, Verb] = {
    name: _verb(name, method) for name, method in vars(Broker).items() if _is_asked(name, method)
}


class CallingBroker(Broker):
    """A broker that forwards every method as a call to another one."""

    def _call(self, verb: str, *given: Any, **named: Any) -> asyncio.Future[Any]:
        raise NotImplementedError

    def publish(self, topic: str, messages: Sequence[Outgoing]) -> asyncio.Future[Sequence[str]]:
        return self._call("publish", topic, messages)


def _calling(verb: str) -> Callable[..., Coroutine[Any, Any, Any]]:
    async def call(self: CallingBroker, *given: Any, **named: Any) -> Any:
        return await self._call(verb, *given, **named)

    return call


for _name in VERBS.keys() - {"publish"}:
    setattr(CallingBroker, _name, _calling(_name))
