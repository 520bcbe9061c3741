"""FastAPI: an application that publishes what it is asked for and handles it in the background.

The store is open as long as the application: its lifespan opens it, and closing waits for the handlers that run. Serve it with
``uvicorn``, for example; here it is called directly, so that the example ends.

Prints:

    POST /orders → {'status': 'accepted'}
    POST /orders → {'status': 'accepted'}
    shipped to ann: book, pen
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from seriatim import Message, PubSub, Topic

shipped: dict[str, list[str]] = defaultdict(list)


async def ship(message: Message) -> None:
    shipped[str(message.ordering_key)].append(message.json()["item"])


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with PubSub("sqlite:///orders.db") as pubsub:
        app.state.orders = await pubsub.topic("orders").ensure()
        shipping = await app.state.orders.subscription("shipping").ensure()
        shipping.on("message", ship)
        shipping.open(max_messages=16, ack="on-return")
        app.state.shipping = shipping
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=202)
async def order(customer: str, item: str) -> dict[str, str]:
    orders: Topic = app.state.orders
    await orders.publish_json({"item": item}, ordering_key=customer)  # durable when this returns
    return {"status": "accepted"}


async def main() -> None:
    async with app.router.lifespan_context(app):
        for item in ("book", "pen"):
            print("POST /orders →", await order("ann", item))
        await app.state.shipping.wait_until_empty()
    for customer, items in shipped.items():
        print(f"shipped to {customer}: {', '.join(items)}")


if __name__ == "__main__":
    asyncio.run(main())
