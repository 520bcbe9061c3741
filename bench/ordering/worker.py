"""One run of one participant, in a process of its own: ``python -m bench.ordering.worker CLIENT ADDRESS WORK``."""

from __future__ import annotations

import asyncio
import json
import sys

from bench.ordering import peers
from bench.ordering.work import Journal, Work


async def main(client: str, address: str, said: str) -> None:
    work = Work.from_json(json.loads(said))
    journal = Journal(work)
    seconds = await getattr(peers, client)(address, work, journal)
    json.dump({"seconds": seconds, "events": journal.events}, sys.stdout)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
