"""Files in memory that fail where they are told to."""

from __future__ import annotations

from dataclasses import dataclass, field

from seriatim.errors import StoreFailed
from seriatim.spark.state.files import temporary_name


@dataclass
class MemoryFiles:
    root: str = "memory"
    content: dict[str, bytes] = field(default_factory=dict)
    operations: list[str] = field(default_factory=list)
    fail_at: int | None = None
    leave_unfinished: bool = False
    keeps_copies: bool = False

    def _operate(self, operation: str) -> None:
        self.operations.append(operation)
        if self.fail_at == len(self.operations) - 1:
            raise StoreFailed(f"{operation} failed")

    def write(self, path: str, content: bytes) -> None:
        if self.leave_unfinished and self.fail_at == len(self.operations):
            self.content[temporary_name(path)] = content[: len(content) // 2]
        self._operate(f"write {path}")
        self.content[path] = content

    def write_new(self, path: str, content: bytes) -> None:
        if path not in self.content:
            self.write(path, content)

    def read(self, path: str) -> bytes | None:
        self._operate(f"read {path}")
        return self.content.get(path)

    def map(self, path: str, digest: str, *, again: bool = False) -> memoryview | None:
        self._operate(f"map {path}")
        content = self.content.get(path)
        return None if content is None else memoryview(content)

    def keep_copy(self, digest: str, content: bytes) -> None:
        pass

    def read_ends(self, path: str, first: int, last: int) -> bytes | None:
        self._operate(f"read ends {path}")
        content = self.content.get(path)
        return None if content is None else content[:first] + content[len(content) - last :]

    def names(self, folder: str) -> list[str]:
        self._operate(f"names {folder}")
        prefix = f"{folder}/" if folder else ""
        return sorted({path[len(prefix) :].split("/")[0] for path in self.content if path.startswith(prefix)})

    def delete(self, path: str) -> None:
        self._operate(f"delete {path}")
        self.content.pop(path, None)

    def delete_folder(self, folder: str) -> None:
        self._operate(f"delete folder {folder}")
        for path in [path for path in self.content if path.startswith(f"{folder}/")]:
            del self.content[path]
