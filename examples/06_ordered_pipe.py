"""An ordered pipe: a route that drops a fifth, repeats a fifth and shuffles the rest, made absolute in ten lines.

Prints:

    bare:  1 3 2 5 2 6 1 10 9 8 12 11
    piped: 1 2 3 4 5 6 7 8 9 10 11 12
    end to end: absolute, reliability 1
"""

import asyncio

from seriatim.pipes import Element, Level, Pipe
from seriatim.testing import FaultyRoute, run_in_virtual_time


def bad_route() -> FaultyRoute:
    return FaultyRoute(seed=7, drop=0.2, duplicate=0.2, shuffle=8)


async def through(element: Element, level: Level) -> str:
    received: list[str] = []

    async def deliver(message: bytes) -> None:
        received.append(message.decode())

    async with element.run(deliver, require=level) as inlet:  # refused here if the element can't keep that level
        for number in range(1, 13):
            await inlet.send(str(number).encode())
        await inlet.drain()
        await asyncio.sleep(1)  # a bare route can't know when everything is through
    return " ".join(received)


if __name__ == "__main__":
    print("bare: ", run_in_virtual_time(through(bad_route(), Level.NONE)))
    print("piped:", run_in_virtual_time(through(Pipe(bad_route()), Level.ABSOLUTE)))
    print(Pipe(bad_route()).explain().describe()[-1])
