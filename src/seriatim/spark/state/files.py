"""The few file operations that state needs, on local paths and on pyarrow's file systems.

A file appears whole or not at all: it is written under another name in the same folder, and renamed when it is
complete. On local disks what a rename shows is on the disk before.

**Not every file system replaces a file in one step.** HDFS deletes the old one and renames the new, and whoever is killed in
between leaves none. So what must never be missing is made by ``write_new``, which leaves alone what is there."""

from __future__ import annotations

import errno
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Protocol

from pyarrow import ArrowException
from pyarrow import fs as arrow_fs

from seriatim.errors import InvalidArgument, StoreError, StoreFailed, StoreFull

TEMPORARY = ".tmp"


class Files(Protocol):
    """Paths are relative to one root, with slashes."""

    root: str

    def write(self, path: str, content: bytes) -> None:
        """Make a file, or replace it, at once."""

    def write_new(self, path: str, content: bytes) -> None:
        """Make a file, at once. If there is one already, it stays as it is."""

    def read(self, path: str) -> bytes | None:
        """All of a file; None when it is not there."""

    def read_ends(self, path: str, first: int, last: int) -> bytes | None:
        """The first and the last bytes of a file, one after the other; None when it is not there."""

    def names(self, folder: str) -> list[str]:
        """What is in a folder, sorted; nothing when it is not there."""

    def delete(self, path: str) -> None:
        """Remove a file, if it is there."""

    def delete_folder(self, folder: str) -> None:
        """Remove a folder with everything in it, if it is there."""


def files_at(location: str) -> Files:
    """The files below a local path or an address that pyarrow knows (``s3://…``, ``gs://…``, ``hdfs://…``)."""
    if re.match(r"[A-Za-z][\w+.-]+:(?!//)", location):  # one letter before the colon is a Windows drive
        raise InvalidArgument(
            f"state can't be kept at {location}: write an address as scheme://…, or name a local folder"
        )
    if "://" not in location:
        return LocalFiles(location)
    if location.startswith(("s3a://", "s3n://")):
        raise InvalidArgument(
            f"state can't be kept at {location}: that is the name of Spark's own connector, and state is read and written with "
            f"pyarrow, which has its own settings (the environment variables of AWS, not fs.s3a.*): name it s3://"
            f"{location.partition('://')[2]}, as state=…"
        )
    try:
        system, path = arrow_fs.FileSystem.from_uri(location)
    except (ArrowException, ValueError) as error:
        raise InvalidArgument(
            f"state can't be kept at {location}: {error}; name a local folder or a pyarrow file system"
        ) from None
    return LocalFiles(path) if isinstance(system, arrow_fs.LocalFileSystem) else ArrowFiles(system, path, location)


def temporary_name(path: str) -> str:
    """A unique name beside ``path``: attempts must not disturb each other."""
    return f"{path}.{uuid.uuid4().hex}{TEMPORARY}"


@contextmanager
def failures(doing: str) -> Iterator[None]:
    """Turn what the operating system reports into an error of ours."""
    try:
        yield
    except OSError as error:
        kind: type[StoreError] = StoreFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else StoreFailed
        raise kind(f"{doing} failed: {error}; nothing was changed, try again when that is repaired") from error


class LocalFiles:
    """Files on a local disk."""

    def __init__(self, root: str) -> None:
        self.root = str(Path(root).absolute())

    def write(self, path: str, content: bytes) -> None:
        target = Path(self.root, path)
        temporary = Path(temporary_name(str(target)))
        with failures(f"writing {target}"):
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._write_through(temporary, content)
                self._rename(temporary, target)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
            self._sync_folder(target.parent)

    def write_new(self, path: str, content: bytes) -> None:
        if not Path(
            self.root, path
        ).exists():  # if another attempt is faster now, a rename replaces its file in one step
            self.write(path, content)

    def _write_through(self, path: Path, content: bytes) -> None:
        with path.open("xb") as file:
            file.write(content)
            self._sync(file)

    def _sync(self, file: BinaryIO) -> None:
        file.flush()
        os.fsync(file.fileno())

    def _rename(self, source: Path, target: Path) -> None:
        source.replace(target)

    def _sync_folder(self, folder: Path) -> None:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def show_folder(self, source: str, target: str) -> None:
        """Give a folder of finished files its name, in one step. All of it is on the disk before."""
        folder = Path(self.root, source)
        with failures(f"renaming {folder}"):
            for path in folder.iterdir():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
            self._sync_folder(folder)
            folder.rename(Path(self.root, target))
            self._sync_folder(Path(self.root, target).parent)

    def read(self, path: str) -> bytes | None:
        with failures(f"reading {self.root}/{path}"):
            try:
                return Path(self.root, path).read_bytes()
            except FileNotFoundError:
                return None

    def read_ends(self, path: str, first: int, last: int) -> bytes | None:
        with failures(f"reading {self.root}/{path}"):
            try:
                with Path(self.root, path).open("rb") as file:
                    head = file.read(first)
                    file.seek(-min(last, file.seek(0, os.SEEK_END)), os.SEEK_END)
                    return head + file.read(last)
            except FileNotFoundError:
                return None

    def names(self, folder: str) -> list[str]:
        with failures(f"listing {self.root}/{folder}"):
            try:
                return sorted(entry.name for entry in Path(self.root, folder).iterdir())
            except FileNotFoundError:
                return []

    def delete(self, path: str) -> None:
        with failures(f"deleting {self.root}/{path}"):
            Path(self.root, path).unlink(missing_ok=True)

    def delete_folder(self, folder: str) -> None:
        with failures(f"deleting {self.root}/{folder}"), suppress(FileNotFoundError):
            shutil.rmtree(Path(self.root, folder))


class ArrowFiles:
    """Files on any file system that pyarrow knows."""

    def __init__(self, system: arrow_fs.FileSystem, path: str, location: str) -> None:
        self.root, self._system, self._path = location, system, path.rstrip("/")

    def _full(self, path: str) -> str:
        return f"{self._path}/{path}" if path else self._path

    def write(self, path: str, content: bytes) -> None:
        with failures(f"writing {self.root}/{path}"):
            self._system.move(self._write_temporary(path, content), self._full(path))

    def write_new(self, path: str, content: bytes) -> None:
        with failures(f"writing {self.root}/{path}"):
            temporary = self._write_temporary(path, content)
            # As late as can be: an attempt that was slow finds here what the one that was faster has made.
            if self._system.get_file_info(self._full(path)).type == arrow_fs.FileType.NotFound:
                self._system.move(temporary, self._full(path))
            else:
                self._system.delete_file(temporary)

    def _write_temporary(self, path: str, content: bytes) -> str:
        target = self._full(path)
        self._system.create_dir(target.rpartition("/")[0], recursive=True)
        temporary = temporary_name(target)
        with self._system.open_output_stream(temporary) as stream:
            stream.write(content)
        return temporary

    def read(self, path: str) -> bytes | None:
        with failures(f"reading {self.root}/{path}"):
            try:
                with self._system.open_input_file(self._full(path)) as file:
                    return bytes(file.read())
            except FileNotFoundError:
                return None

    def read_ends(self, path: str, first: int, last: int) -> bytes | None:
        with failures(f"reading {self.root}/{path}"):
            try:
                with self._system.open_input_file(self._full(path)) as file:
                    head = bytes(file.read(first))
                    file.seek(max(0, file.size() - last))
                    return head + bytes(file.read(last))
            except FileNotFoundError:
                return None

    def names(self, folder: str) -> list[str]:
        with failures(f"listing {self.root}/{folder}"):
            selector = arrow_fs.FileSelector(self._full(folder), allow_not_found=True)
            return sorted(info.base_name for info in self._system.get_file_info(selector))

    def delete(self, path: str) -> None:
        with failures(f"deleting {self.root}/{path}"), suppress(FileNotFoundError):
            self._system.delete_file(self._full(path))

    def delete_folder(self, folder: str) -> None:
        with failures(f"deleting {self.root}/{folder}"), suppress(FileNotFoundError):
            self._system.delete_dir(self._full(folder))
