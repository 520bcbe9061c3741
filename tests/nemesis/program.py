"""A process of a round: started again whenever it ends, watched for what it says, and never left behind."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from tests.nemesis.history import Recorder

SUSPICIOUS = (b"Traceback", b"never awaited", b"never retrieved", b"Segmentation")
WITH_ITS_PARENT = ["setpriv", "--pdeathsig", "KILL"]
"""However the nemesis ends, its programs end with it."""


class Surroundings:
    """What a program runs on, and faults act on: a network link, a disk, a clock."""

    @property
    def prefix(self) -> Sequence[str]:
        """What comes before the program's command."""
        return ()

    @property
    def environment(self) -> dict[str, str]:
        """What is added to the program's environment."""
        return {}

    def forget(self, process: int) -> None:
        """A process that used this has ended."""


S = TypeVar("S", bound=Surroundings)


class Program:
    """One process, life after life. ``command`` makes the command of a life from its number, which starts at 1.

    ``name`` is also the name in the histories. ``is_client`` tells who ends first when a round is over, and ``surroundings``
    is what faults can find with :meth:`find`.
    """

    ending = signal.SIGTERM
    """What asks it to end."""
    become: Sequence[str] = ()
    """A command that runs the program as another user."""

    def __init__(
        self,
        name: str,
        folder: Path,
        command: Callable[[int], Sequence[str]],
        *,
        surroundings: Iterable[Surroundings] = (),
        is_client: bool = True,
    ) -> None:
        self.name, self.is_client = name, is_client
        self.lives = 0
        self.troubles: list[str] = []
        self.dependents: list[Program] = []
        """Programs that this one serves: what it does not answer, they don't know."""
        self.surroundings = list(surroundings)
        self._command, self._folder = command, folder
        self._errors = folder / f"{name}.stderr"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._forget()
        self._record_for(self.dependents, "continued")
        self.lives += 1
        prefix = [word for one in self.surroundings for word in one.prefix]
        environment = [f"{name}={value}" for one in self.surroundings for name, value in one.environment.items()]
        with self._errors.open("ab") as errors:
            self._process = subprocess.Popen(
                [*WITH_ITS_PARENT, *prefix, *self.become, "env", *environment, *self._command(self.lives)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )

    def find(self, kind: type[S]) -> S | None:
        """What it has of these surroundings."""
        return next((one for one in self.surroundings if isinstance(one, kind)), None)

    def get(self, kind: type[S]) -> S:
        found = self.find(kind)
        assert found is not None
        return found

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def may_be_disturbed(self) -> bool:
        """Whether a fault would meet it at work: not while it only starts, if that takes long."""
        return True

    def send(self, what: signal.Signals) -> None:
        if self.is_running:
            assert self._process is not None
            self._process.send_signal(what)

    def wait(self, seconds: float) -> bool:
        """Whether it ended by itself in time. If not, it says where it stands (SIGUSR1) and is killed."""
        if self._process is None:
            return True
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGUSR1)
            time.sleep(1)
            self._process.kill()
            self._process.wait()
            return False
        finally:
            self._forget()
        return True

    def _forget(self) -> None:
        if self._process is not None:
            for one in self.surroundings:
                one.forget(self._process.pid)

    def ask_to_end(self) -> None:
        self._record_for(self.dependents, "impaired")
        self.send(self.ending)

    def end(self, seconds: float) -> None:
        """Ask it to end, and wait for that."""
        self.ask_to_end()
        self.expect_end(seconds)

    def expect_end(self, seconds: float) -> None:
        """That it does not end is a finding."""
        if not self.wait(seconds):
            self.troubles.append(f"{self.name} did not end within {seconds:.0f} s of being asked to")

    def kill(self) -> None:
        self._record_for(self.dependents, "impaired")
        self.send(signal.SIGKILL)
        self.wait(5)

    def record(self, what: str) -> None:
        """Add an event about this program, and about those that depend on it, to the history of the nemesis."""
        self._record_for([self, *self.dependents], what)

    def _record_for(self, programs: Iterable[Program], what: str) -> None:
        for program in programs:
            with Recorder(self._folder, program.name, file="nemesis") as record:
                record(what)

    def suspicious(self) -> list[str]:
        """Lines of its standard error that no program should write."""
        said = self._errors.read_bytes() if self._errors.exists() else b""
        lines = [line for line in said.splitlines() if any(word in line for word in SUSPICIOUS)]
        return [f"{self.name}: {line.decode(errors='replace')}" for line in lines]
