"""The file operations that state needs, on local paths and on pyarrow's file systems.

A file appears atomically: it is written under another name in the same folder, and renamed when it is complete. On local disks
its content is on disk before the rename. In object stores an object appears when its upload is complete, and an interrupted
upload leaves nothing: there it is written under its own name, in one request if it is small.

**Not every file system replaces a file atomically.** HDFS deletes the old file and renames the new one; a process that is
killed in between leaves none. So files that must never be missing are made by ``write_new``, which never replaces a file."""

from __future__ import annotations

import errno
import mmap
import os
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Protocol, cast
from urllib.parse import parse_qsl, urlencode

from pyarrow import ArrowException
from pyarrow import fs as arrow_fs

from seriatim.errors import InvalidArgument, StoreError, StoreFailed, StoreFull

TEMPORARY = ".tmp"
S3 = ("s3://", "s3a://", "s3n://")
OBJECT_STORES = {"s3", "gcs", "abfs"}
MAX_ATTEMPTS = 10
"""How often a request is made that a store answers with 5xx or turns away; about half a minute in all."""
COPIES, COPIES_LIMIT = "SERIATIM_STATE_COPIES", "SERIATIM_STATE_COPIES_BYTES"
"""Environment variables: where a machine keeps copies of state that is far away, and how many bytes of them."""
MAX_COPIED_BYTES = 10 << 30
UNREADABLE_ANSWER = "Failed to flush response stream"


class Files(Protocol):
    """Paths are relative to one root, with slashes."""

    root: str
    keeps_copies: bool
    """Whether ``map`` keeps copies on this machine."""

    def write(self, path: str, content: bytes) -> None:
        """Make a file, or replace it, at once."""

    def write_new(self, path: str, content: bytes) -> None:
        """Make a file, at once. If there is one already, it stays as it is."""

    def read(self, path: str) -> bytes | None:
        """All of a file; None when it is not there."""

    def map(self, path: str, digest: str, *, again: bool = False) -> memoryview | None:
        """All of a file, of which only what is used is brought into memory; None when it is not there.

        A copy is found under the ``digest`` of the file, which the caller compares; ``again`` replaces one that was damaged.
        """

    def keep_copy(self, digest: str, content: bytes) -> None:
        """Keep a copy of a file that was just written, where copies are kept."""

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
    shown = location.partition("?")[0]  # settings may be secret
    try:
        if location.startswith(S3):
            return ArrowFiles(*_on_s3(location), f"s3{shown[shown.index('://') :]}")
        system, path = arrow_fs.FileSystem.from_uri(location)
    except (ArrowException, OSError, TypeError, ValueError) as error:
        raise InvalidArgument(
            f"state can't be kept at {shown}: {error}; name a local folder or a pyarrow file system"
        ) from None
    return LocalFiles(path) if isinstance(system, arrow_fs.LocalFileSystem) else ArrowFiles(system, path, shown)


def _on_s3(location: str) -> tuple[arrow_fs.FileSystem, str]:
    """The file system of a bucket, with settings after a ``?``, and the path in it. Otherwise AWS's own settings count."""
    address, _, query = location.partition("?")
    path, settings = address.partition("://")[2], dict(parse_qsl(query))
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint:  # pyarrow does not look there
        settings.setdefault("endpoint_override", endpoint)
    if not {"region", "endpoint_override"} & settings.keys() and "AWS_REGION" not in os.environ:
        settings["region"] = arrow_fs.resolve_s3_region(path.partition("/")[0])
    retry = arrow_fs.AwsStandardS3RetryStrategy(max_attempts=MAX_ATTEMPTS)
    return arrow_fs.S3FileSystem(allow_delayed_open=True, retry_strategy=retry, **settings), path


def location_for_tasks(location: str, setting: Callable[[str], str | None]) -> str:
    """The location as every process of a query finds it: a local path from its root, ``s3a://…`` with Spark's settings for it.

    It may hold a secret: show the ``root`` of its files instead.
    """
    if not location.startswith(("s3a://", "s3n://")):
        files = files_at(location)
        return files.root if isinstance(files, LocalFiles) else location
    path = location.partition("://")[2]

    def of_bucket(name: str) -> str | None:
        own = setting(f"spark.hadoop.fs.s3a.bucket.{path.partition('/')[0]}.{name}")
        return own or setting(f"spark.hadoop.fs.s3a.{name}")

    scheme, _, host = (of_bucket("endpoint") or "").rpartition("://")
    settings = {
        **{name: of_bucket(name.replace("_", ".")) for name in ("access_key", "secret_key", "session_token")},
        "region": of_bucket("endpoint.region"),
        "endpoint_override": host,
        "scheme": scheme or ("http" if of_bucket("connection.ssl.enabled") == "false" else ""),
    }
    query = urlencode({name: value for name, value in settings.items() if value})
    return f"s3://{path}{'?' if query else ''}{query}"


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


def _read_again(read: Callable[[], bytes | None]) -> bytes | None:
    """Read, and again if the store turned that away with an answer that was longer than what was asked for.

    pyarrow reads into a buffer of that size. It repeats requests that it knows to be turned away, and not these.
    """
    for attempt in range(MAX_ATTEMPTS - 1):
        try:
            return read()
        except StoreFailed as error:
            if UNREADABLE_ANSWER not in str(error):
                raise
            time.sleep(min(0.025 * 2**attempt, 5.0))
    return read()


class _ReadableFiles:
    """What local and remote files have in common."""

    root: str

    def open(self, path: str) -> BinaryIO:
        raise NotImplementedError

    def read(self, path: str) -> bytes | None:
        with failures(f"reading {self.root}/{path}"), suppress(FileNotFoundError), self.open(path) as file:
            return bytes(file.read())
        return None

    def read_ends(self, path: str, first: int, last: int) -> bytes | None:
        with failures(f"reading {self.root}/{path}"), suppress(FileNotFoundError), self.open(path) as file:
            head = bytes(file.read(first))
            file.seek(max(0, file.seek(0, os.SEEK_END) - last))
            return head + bytes(file.read(last))
        return None


def _mapped(path: Path) -> memoryview | None:
    with failures(f"reading {path}"), suppress(FileNotFoundError), path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    return None


class MachineCopies:
    """Copies of files that are far away, shared by all processes of a machine: a folder, bounded in bytes. What was not used
    for the longest time goes first. A file that is larger than the bound is not kept.

    A copy appears whole or not at all. Whoever uses one compares it with its digest, so nobody has to be trusted.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder, self._limit = folder, limit

    @classmethod
    def of_environment(cls) -> MachineCopies:
        folder = os.environ.get(COPIES) or str(Path(tempfile.gettempdir(), f"seriatim-state-{os.getuid()}"))
        return cls(Path(folder), int(os.environ.get(COPIES_LIMIT) or MAX_COPIED_BYTES))

    def map(self, digest: str, fetch: Callable[[], bytes | None], *, again: bool) -> memoryview | None:
        found = None if again else _mapped(self._folder / digest)
        if found is not None:
            with suppress(OSError):
                os.utime(self._folder / digest)
            return found
        content = fetch()
        if content is None:
            return None
        self.keep(digest, content)
        return memoryview(content)

    def keep(self, digest: str, content: bytes) -> None:
        if len(content) > self._limit:
            return
        path = self._folder / digest
        with suppress(OSError):  # a full disk must not stop a query that needs none
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._make_room(len(content))
            temporary = Path(temporary_name(str(path)))
            temporary.write_bytes(content)
            temporary.replace(path)

    def _make_room(self, size: int) -> None:
        known = sorted((entry.stat().st_mtime, entry.stat().st_size, entry.path) for entry in os.scandir(self._folder))
        size += sum(held for _, held, _ in known)
        for _, held, path in known:
            if size <= self._limit:
                return
            Path(path).unlink(missing_ok=True)
            size -= held


class LocalFiles(_ReadableFiles):
    """Files on a local disk."""

    keeps_copies = False

    def __init__(self, root: str) -> None:
        self.root = str(Path(root).absolute())

    def map(self, path: str, digest: str, *, again: bool = False) -> memoryview | None:  # noqa: ARG002 - there are no copies
        return _mapped(Path(self.root, path))

    def keep_copy(self, digest: str, content: bytes) -> None:
        """There are none."""

    @property
    def address(self) -> str:
        """What Spark calls it."""
        return f"file://{self.root}"

    def write(self, path: str, content: bytes) -> None:
        target = Path(self.root, path)
        temporary = Path(temporary_name(str(target)))
        with failures(f"writing {target}"):
            self.make_folder(target.parent)
            try:
                self._write_through(temporary, content)
                self._rename(temporary, target)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
            self._sync_folder(target.parent)

    def make_folder(self, folder: Path) -> None:
        """Make a folder, and those above it, so that their names are on the disk."""
        if not folder.exists():
            self.make_folder(folder.parent)
            folder.mkdir(exist_ok=True)
            self._sync_folder(folder.parent)

    def write_new(self, path: str, content: bytes) -> None:
        # If another attempt is faster now, a rename replaces its file in one step.
        if not Path(self.root, path).exists():
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
            self.sync([f"{source}/{path.name}" for path in folder.iterdir()])
            folder.rename(Path(self.root, target))
            self._sync_folder(Path(self.root, target).parent)

    def sync(self, paths: Sequence[str]) -> None:
        """Make sure that files, and the folders that they are in, are on the disk."""
        for path in paths:
            with self.open(path) as file:
                os.fsync(file.fileno())
        for folder in {Path(self.root, path).parent for path in paths}:
            self._sync_folder(folder)

    def open(self, path: str) -> BinaryIO:
        return Path(self.root, path).open("rb")

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


class ArrowFiles(_ReadableFiles):
    """Files on any file system that pyarrow knows."""

    keeps_copies = True

    def __init__(
        self, system: arrow_fs.FileSystem, path: str, location: str, copies: MachineCopies | None = None
    ) -> None:
        self.root, self._system, self._path = location, system, path.rstrip("/")
        self._copies = copies or MachineCopies.of_environment()
        self._is_object_store = system.type_name in OBJECT_STORES

    def read(self, path: str) -> bytes | None:
        return _read_again(lambda: _ReadableFiles.read(self, path))

    def read_ends(self, path: str, first: int, last: int) -> bytes | None:
        return _read_again(lambda: _ReadableFiles.read_ends(self, path, first, last))

    def map(self, path: str, digest: str, *, again: bool = False) -> memoryview | None:
        return self._copies.map(digest, lambda: self.read(path), again=again)

    def keep_copy(self, digest: str, content: bytes) -> None:
        self._copies.keep(digest, content)

    def _full(self, path: str) -> str:
        return f"{self._path}/{path}" if path else self._path

    def write(self, path: str, content: bytes) -> None:
        with failures(f"writing {self.root}/{path}"):
            if self._is_object_store:
                self._put(path, content)
            else:
                self._system.move(self._write_temporary(path, content), self._full(path))

    def write_new(self, path: str, content: bytes) -> None:
        with failures(f"writing {self.root}/{path}"):
            temporary = None if self._is_object_store else self._write_temporary(path, content)
            # As late as can be: an attempt that was slow finds here what the one that was faster has made.
            is_new = self.read_ends(path, 0, 0) is None
            if temporary is None:
                if is_new:
                    self._put(path, content)
            elif is_new:
                self._system.move(temporary, self._full(path))
            else:
                self._system.delete_file(temporary)

    def _put(self, path: str, content: bytes) -> None:
        """Upload an object. If the end of a large one, which goes in parts, is asked for again after an answer that was lost or
        turned away, the store no longer knows the upload: then it counts whether the object is there."""
        try:
            self._upload(self._full(path), content)
        except OSError:
            if self.read(path) != content:
                raise

    def _write_temporary(self, path: str, content: bytes) -> str:
        target = self._full(path)
        self._system.create_dir(target.rpartition("/")[0], recursive=True)
        temporary = temporary_name(target)
        self._upload(temporary, content)
        return temporary

    def _upload(self, target: str, content: bytes) -> None:
        with self._system.open_output_stream(target) as stream:
            stream.write(content)

    def open(self, path: str) -> BinaryIO:
        return cast(BinaryIO, self._system.open_input_file(self._full(path)))

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
