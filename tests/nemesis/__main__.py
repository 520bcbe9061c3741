"""Real processes, tormented: kill, stop and continue, end politely, break connections; then judge what everybody saw.

    python -m tests.nemesis --store sqlite --minutes 10 --seed 7

Each round has a store of its own and lasts half a minute. When it is over a last client drains the store undisturbed, and the
checker reads all histories. The folder of a round that has anomalies is kept and named. ``--store`` is ``sqlite`` (one
owner, the others linked to it), ``postgres`` (one active, the others standing by) or ``served`` (clients of a server).
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from random import Random

from tests import postgres
from tests.nemesis.checker import Anomaly, Promises, check
from tests.nemesis.client import GRAVES, LIMITED, MAX_ATTEMPTS, STRICT, Life
from tests.nemesis.history import Recorder, read_all

ROUND_S = 30.0
POLITE_END_S = 40.0
DRAIN_S = 120.0
SUSPICIOUS = (b"Traceback", b"never awaited", b"never retrieved", b"Segmentation")


class Program:
    """A client or a server that is started again whenever it ends."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self._errors = folder / f"{name}.stderr"
        self._process: subprocess.Popen[bytes] | None = None
        self.lives = 0

    def start(self, command: Sequence[str]) -> None:
        self.lives += 1
        with self._errors.open("ab") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors
            )

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def send(self, what: signal.Signals) -> None:
        if self.is_running:
            assert self._process is not None
            self._process.send_signal(what)

    def end(self, seconds: float) -> bool:
        """Whether it ended by itself in time. If not it is killed."""
        assert self._process is not None
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGUSR1)
            time.sleep(1)
            self._process.kill()
            self._process.wait()
            return False
        return True

    def suspicious(self) -> list[str]:
        said = self._errors.read_bytes() if self._errors.exists() else b""
        return [line.decode(errors="replace") for line in said.splitlines() if any(word in line for word in SUSPICIOUS)]


class Round:
    """One store, and everybody who uses it."""

    def __init__(self, store: str, seed: int, seconds: float) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="seriatim-nemesis-"))
        self.disturbances: Counter[str] = Counter()
        self._store, self._seed, self._seconds = store, seed, seconds
        self._random = Random(seed)
        self._clients = [Program(name, self.folder) for name in "abc"]
        self._server = Program("server", self.folder) if store == "served" else None
        self._port = _free_port()
        self._stopped: dict[Program, float] = {}
        self.troubles: list[str] = []
        if store == "postgres":
            self._url = postgres.server().new_url()
        else:
            self._url = f"sqlite:///{self.folder / 'store.db'}"

    def run(self) -> list[Anomaly]:
        end = time.monotonic() + self._seconds
        try:
            while time.monotonic() < end:
                self._start_missing()
                self._continue_stopped(time.monotonic())
                time.sleep(self._random.uniform(0.05, 1.0))
                self._disturb()
            self._continue_stopped(float("inf"))
            self._end_politely()
            self._drain()
        finally:
            for program in self._programs:
                program.send(signal.SIGKILL)
        return self._judge()

    @property
    def _programs(self) -> list[Program]:
        return [*self._clients, *([self._server] if self._server else [])]

    def _start_missing(self) -> None:
        if self._server is not None and not self._server.is_running:
            self._server.start(
                [sys.executable, "-m", "seriatim", "serve", "--store", self._url, "--port", str(self._port)]
            )
        for client in self._clients:
            if not client.is_running:
                client.start(self._command(client, "disturb"))

    def _command(self, client: Program, work: str) -> list[str]:
        url = (
            f"pubsub://127.0.0.1:{self._port}/seriatim" if self._server is not None and work == "disturb" else self._url
        )
        life = Life(url, client.name, str(self.folder), self._seed, client.lives, work, self._store == "postgres")
        return [sys.executable, "-m", "tests.nemesis.client", json.dumps(asdict(life))]

    def _disturb(self) -> None:
        program = self._random.choice(self._programs)
        if program in self._stopped or not program.is_running:
            return
        what = self._random.choice(["kill", "kill", "stop", "stop", "stop", "end", "break", "nothing"])
        if what == "kill":
            program.send(signal.SIGKILL)
            program.end(5)
        elif what == "stop":
            program.send(signal.SIGSTOP)
            self._stopped[program] = time.monotonic() + self._random.choice([0.1, 0.5, 2.0, 4.0])
        elif what == "end":
            self._continue_stopped(float("inf"))  # it may be waiting for one of them
            program.send(signal.SIGTERM)
            if not program.end(POLITE_END_S):
                self.troubles.append(f"{program.name} did not end within {POLITE_END_S:.0f} s of SIGTERM")
        elif what == "break" and self._store == "postgres":
            postgres.server().end_connections()
        self.disturbances[what] += 1

    def _continue_stopped(self, now: float) -> None:
        for program, until in list(self._stopped.items()):
            if until <= now:
                self._record(program)("continued")
                program.send(signal.SIGCONT)
                del self._stopped[program]

    def _record(self, program: Program) -> Recorder:
        return Recorder(self.folder, program.name, file="nemesis")

    def _end_politely(self) -> None:
        for program in self._clients:
            program.send(signal.SIGTERM)
        for program in self._clients:
            if not program.end(POLITE_END_S):
                self.troubles.append(f"{program.name} did not end within {POLITE_END_S:.0f} s at the end")
        if self._server is not None:
            self._server.send(signal.SIGTERM)
            if not self._server.end(POLITE_END_S):
                self.troubles.append("the server did not end politely")

    def _drain(self) -> None:
        last = Program("drain", self.folder)
        last.start(self._command(last, "drain"))
        if not last.end(DRAIN_S):
            self.troubles.append(f"the store was not drained within {DRAIN_S:.0f} s")
        checked = subprocess.run(
            [sys.executable, "-m", "seriatim", "check", "--store", self._url], capture_output=True, check=False
        )
        if checked.returncode != 0:
            self.troubles.append(f"check: {checked.stdout.decode()} {checked.stderr.decode()}")
        self.troubles += last.suspicious()

    def _judge(self) -> list[Anomaly]:
        events = read_all(self.folder)
        dead = {(event.key, event.number) for event in events if event.sub == GRAVES}
        for program in self._clients:
            self.troubles += [f"{program.name}: {line}" for line in program.suspicious()]
        counted = Counter(event.what for event in events)
        print(f"  {len(events)} events: {counted['published']} published, {counted['delivered']} delivered, "
              f"{counted['acked']} acked, {counted['stale']} stale, {counted['taken-out']} taken out; "
              f"{dict(self.disturbances)}")  # fmt: skip
        return [
            *check(events, Promises(STRICT)),
            *check(events, Promises(LIMITED, MAX_ATTEMPTS), dead),
        ]


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", choices=["sqlite", "postgres", "served"], action="append")
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--round", type=float, default=ROUND_S, help="seconds of a round")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    stores = arguments.store or ["sqlite", "postgres", "served"]
    end, seed, failed = time.monotonic() + 60 * arguments.minutes, arguments.seed, 0
    while time.monotonic() < end:
        store = stores[seed % len(stores)]
        print(f"{time.strftime('%H:%M:%S')} seed {seed}, {store}", flush=True)
        one = Round(store, seed, arguments.round)
        anomalies = one.run()
        for kind, count in Counter(anomaly.kind for anomaly in anomalies).items():
            print(f"  ANOMALY {kind}: {count}, such as {next(each for each in anomalies if each.kind == kind)}")
        for trouble in one.troubles[:10]:
            print(f"  TROUBLE {trouble}")
        if anomalies or one.troubles:
            failed += 1
            print(f"  kept: {one.folder}", flush=True)
        else:
            shutil.rmtree(one.folder)
        seed += 1
    print(f"{failed} rounds with anomalies" if failed else "no anomalies")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
