"""Pipes: a sender and a receiver around one or more routes, which restore the guarantees that the routes break.

Rules
    - ``Pipe(route)`` is absolute and indexed by default; ``sequential``, ``indexed`` and ``resend`` name the
      kinds.
    - A pipe is an element of a chain (both ends in this process), a route for other pipes, or two ends in two
      processes: ``sending`` in one, ``receiving`` in the other.
    - Its ``stage`` is what it promises while neither end crashes; its ``crash_stage`` is what remains after crashes. Only
      an ``outbox`` and an ``output`` lose nothing then: messages wait in a topic until they are confirmed, and are written
      to a topic together with their position, in one transaction.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypedDict, Unpack

from seriatim.core.guarantees import Guarantee, Level, Stage
from seriatim.core.pipes.protocol import OnFull, PipeKind, PipeOptions, across_crashes, pipe_stage
from seriatim.core.pipes.receiver import PipeReceiver
from seriatim.core.pipes.sender import MESSAGE_OVERHEAD, PipeSender
from seriatim.core.resequencing.options import OnGap
from seriatim.errors import InvalidArgument
from seriatim.pipes.chain import Deliver, Inlet, JoinedInlet
from seriatim.pipes.durable import Outbox, OutboxEnd, TopicOutput
from seriatim.pipes.endpoints import (
    CallOutput,
    Output,
    ReceiverEnd,
    Report,
    SenderEnd,
    log_entry,
    max_message,
    max_ranges,
)
from seriatim.pipes.epochs import ClockEpochs, Epochs
from seriatim.pipes.frames import HEAD_BYTES
from seriatim.pipes.route import Multipath, OnFrame, Port, Pump, Route


class PipeSettings(TypedDict, total=False):
    """The options of a pipe of a given kind: those of ``PipeOptions``."""

    level: Level | str
    window: int
    queue: int
    on_full: OnFull | str
    capacity: int
    timeout: float
    min_timeout: float
    max_timeout: float
    request_after: float
    on_gap: OnGap | str | None
    gap_timeout: float | None
    confirm_every: int | None
    confirm_after: float
    frame_messages: int


class PipeChoices(PipeSettings, total=False):
    """The same, with the kind."""

    kind: PipeKind | str


class PipeArguments(PipeSettings, total=False):
    """The arguments of ``sequential``, ``indexed`` and ``resend`` besides routes."""

    name: str
    outbox: Outbox | None
    output: TopicOutput | None
    sender_epochs: Epochs | None
    receiver_epochs: Epochs | None
    report: Report


class Pipe(Route):
    """A pipe around one route or several. Options are those of ``PipeOptions``, given as one object or by name."""

    def __init__(
        self,
        *routes: Route,
        options: PipeOptions | None = None,
        name: str = "pipe",
        outbox: Outbox | None = None,
        output: TopicOutput | None = None,
        sender_epochs: Epochs | None = None,
        receiver_epochs: Epochs | None = None,
        report: Report = log_entry,
        **choices: Unpack[PipeChoices],
    ) -> None:
        """Durable ends store their positions under ``name``; ``report`` is called with everything that is given up."""
        if not routes:
            raise InvalidArgument("a pipe needs at least one route")
        if options is not None and choices:
            raise InvalidArgument("give the options of a pipe as one object or by name, not both")
        self.options = options or PipeOptions(**choices)  # type: ignore[arg-type]  # text becomes what it names
        self._route = routes[0] if len(routes) == 1 else Multipath(*routes)
        self._outbox, self._output = outbox, output
        self._sender_epochs = sender_epochs or (outbox.epochs(name) if outbox else ClockEpochs())
        self._receiver_epochs = receiver_epochs or (output.epochs(name) if output else ClockEpochs())
        self._report = report
        self.pipe_name = name
        self.max_frame = max_message(self._route) - MESSAGE_OVERHEAD
        self._check()
        self.name = self.stage.name

    def _check(self) -> None:
        route = self._route.stage
        if self.max_frame < 1:
            raise InvalidArgument(
                f"the frames of {route.name} are too small for a pipe: it needs {HEAD_BYTES} bytes of its own"
            )
        if self.options.gap_policy is OnGap.HOLD and not route.passes & Guarantee.NO_LOSS:
            raise InvalidArgument(
                f"a pipe that waits for missing messages would wait for ever, because {route.name} may lose them: choose "
                "on_gap='skip', or a level that resends"
            )
        if self._output is not None and self.options.kind is PipeKind.RESEND:
            raise InvalidArgument(
                "a resend pipe has no order, so a topic can't keep its place: put an indexed pipe around it"
            )

    # -- what it promises -----------------------------------------------------------------------------------------------

    @property
    def stage(self) -> Stage:
        return pipe_stage(self.options, self._route.stage)

    @property
    def crash_stage(self) -> Stage:
        alive = pipe_stage(self.options, self._route.stage)
        return across_crashes(
            alive,
            self.options,
            durable_sender=self._outbox is not None,
            durable_receiver=self._output is not None,
        )

    # -- two ends in two processes --------------------------------------------------------------------------------------

    @asynccontextmanager
    async def sending(self) -> AsyncIterator[Inlet]:
        """The sending end. Unconfirmed messages are lost when the block ends, unless there is an outbox: ``drain`` first."""
        end = await self._begin_sender()
        try:
            yield end
        finally:
            await end.close()

    @asynccontextmanager
    async def receiving(self, deliver: Deliver | None = None) -> AsyncIterator[ReceiverEnd]:
        """The receiving end. Messages go to the output or to ``deliver``; without either, iterate over it."""
        if deliver is not None and self._output is not None:
            raise InvalidArgument("messages go to the topic that the pipe was given: leave out deliver")
        end = await self._begin_receiver(deliver)
        try:
            yield end
            end.finish()
        finally:
            await end.close()

    # -- both ends in this process --------------------------------------------------------------------------------------

    async def open(self, deliver: Deliver) -> Inlet:
        receiver = await self._begin_receiver(deliver)
        try:
            sender = await self._begin_sender()
        except BaseException:
            await receiver.close()
            raise
        receiver.failed = sender.fail
        return JoinedInlet(sender.send, sender, receiver)

    # -- a route for another pipe ---------------------------------------------------------------------------------------

    async def open_sender(self, on_frame: OnFrame) -> Port:
        end = await self._begin_sender()
        end.on_aside = on_frame
        return _SenderPort(end)

    async def open_receiver(self, on_frame: OnFrame) -> Port:
        async def deliver(frame: bytes) -> None:
            on_frame(frame)

        return _ReceiverPort(await self._begin_receiver(deliver))

    # -- how ------------------------------------------------------------------------------------------------------------

    async def _begin_sender(self) -> SenderEnd:
        epoch, room = await self._sender_epochs.next(), max_message(self._route)
        if self._outbox is None:
            end = SenderEnd(PipeSender(self.options, epoch, max_bytes=room), self.options, self._report)
        else:
            end = await OutboxEnd.begin(self._outbox, self.pipe_name, self.options, epoch, room, self._report)
        await end.connect(self._route)
        return end

    async def _begin_receiver(self, deliver: Deliver | None) -> ReceiverEnd:
        epoch = await self._receiver_epochs.next()
        output: Output | None = None
        position = None
        if self._output is not None:
            output = written = await self._output.begin(self.pipe_name, deliver)
            position = written.position
        elif deliver is not None:
            output = CallOutput(deliver, self.options.confirm_after)
        machine = PipeReceiver(self.options, epoch, position=position, max_ranges=max_ranges(self._route))
        end = ReceiverEnd(machine, output, self._report)
        await end.connect(self._route)
        return end


def sequential(*routes: Route, **choices: Unpack[PipeArguments]) -> Pipe:
    """A pipe in which each message waits for the confirmation of the previous one (receive queue)."""
    return Pipe(*routes, kind=PipeKind.SEQUENTIAL, **choices)


def indexed(*routes: Route, **choices: Unpack[PipeArguments]) -> Pipe:
    """A pipe that numbers messages and sorts them at the receiving end (send queue)."""
    return Pipe(*routes, kind=PipeKind.INDEXED, **choices)


def resend(*routes: Route, **choices: Unpack[PipeArguments]) -> Pipe:
    """A pipe that loses nothing, but does not order. Put an indexed pipe around it, never the other way round."""
    return Pipe(*routes, kind=PipeKind.RESEND, **choices)


class _SenderPort:
    """The sending end of a pipe as a port. A port never waits, so messages without room are queued here."""

    def __init__(self, end: SenderEnd) -> None:
        self._end, self._pump = end, Pump(end.send)
        self.send = self._pump.put

    @property
    def is_ready(self) -> bool:
        return not len(self._pump)

    async def ready(self) -> None:
        await self._pump.drain()

    async def close(self) -> None:
        await self._pump.close()
        await self._end.close()


class _ReceiverPort:
    """The receiving end of a pipe as a port: frames sent back bypass the pipe, and may be lost."""

    is_ready = True

    def __init__(self, end: ReceiverEnd) -> None:
        self._end = end
        self.send = end.send_aside

    async def ready(self) -> None:
        """Always."""

    async def close(self) -> None:
        await self._end.close()
