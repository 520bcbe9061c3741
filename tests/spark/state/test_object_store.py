"""State in an object store: a small object is one request, nothing is written twice, and nothing is listed in vain."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from seriatim.errors import InvalidArgument, StateMismatch, StoreFailed
from seriatim.spark.state import files as state_files
from seriatim.spark.state.batch_versions import StateFolder
from seriatim.spark.state.files import ArrowFiles, LocalFiles, MachineCopies, files_at, location_for_tasks
from seriatim.spark.state.repartition import repartition
from tests.spark.kernel.traces import known_to
from tests.spark.state.object_store import ObjectStore, running
from tests.spark.state.repartitioning import by_function
from tests.spark.state.test_batch_versions import Query, rows


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    with running() as store:
        yield store


@pytest.fixture
def address(store: ObjectStore, tmp_path, monkeypatch) -> str:
    monkeypatch.setenv("SERIATIM_STATE_COPIES", str(tmp_path / "copies"))
    return f"s3a://bucket/a/state?{store.settings()}"


def test_files_are_objects_of_their_own_name_and_small_ones_take_one_request(store, address):
    files = files_at(address)
    assert isinstance(files, ArrowFiles)
    assert files.root == "s3://bucket/a/state"
    store.requests.clear()
    files.write("folder/file", b"0123456789")
    assert store.requests == {"PUT": 1}
    assert store.objects == {"bucket/a/state/folder/file": b"0123456789"}
    files.write_new("folder/file", b"of an attempt that comes late")
    assert store.requests["PUT"] == 1
    assert files.read("folder/file") == b"0123456789"
    assert files.read_ends("folder/file", 2, 3) == b"01789"
    assert (files.read("none"), files.read_ends("none", 1, 1)) == (None, None)
    assert (files.names("folder"), files.names("none")) == (["file"], [])
    files.delete("folder/file")
    assert files.read("folder/file") is None
    files.delete_folder("folder")
    assert files.names("folder") == []
    assert store.keys_used == {"the-key"}


def test_large_objects_arrive_whole(store, address):
    content = bytes(range(256)) * 20_000
    files_at(address).write("large", content)
    assert store.objects["bucket/a/state/large"] == content


def test_a_state_goes_on_from_batch_to_batch_and_can_be_divided_anew(store, address):
    query = Query(files_at(address))
    for batch in range(5):
        query.run(batch, rows(batch))
    assert query.run(5, rows(5)) == [("k", 5)]
    repartition(address, 2, by_function(lambda keys: pytest.importorskip("numpy").zeros(len(keys), dtype="int64")))
    assert Query(files_at(address), partitions=2).run(6, rows(6)) == [("k", 6)]


def test_a_batch_writes_one_object_a_partition_and_lists_nothing(store, address):
    query = Query(files_at(address))
    query.run(0, rows(0))
    store.requests.clear()
    query.run(1, rows(1))
    assert store.requests["PUT"] == 1
    assert not {"LIST", "DELETE", "DELETE MANY", "POST"} & store.requests.keys()
    query.run(1, rows(1))  # the batch comes again: the content is there
    assert store.requests["PUT"] == 1


def test_a_machine_fetches_a_segment_once_and_notices_a_copy_that_was_damaged(store, address, tmp_path):
    query = Query(files_at(address))
    query.run(0, [row for number in range(2_000) for row in rows(0, key=f"key-{number}")])
    query.run(1, rows(1, key="key-1"))
    (large,) = [path for path in (tmp_path / "copies").iterdir() if path.stat().st_size > 20_000]
    del store.objects["bucket/a/state/of-00001/part-00000/batch-000000000000.state"]  # it is not needed there any more
    assert query.run(2, rows(2, key="key-1")) == [("key-1", 2)]
    large.write_bytes(bytes(large.stat().st_size))
    with pytest.raises(StateMismatch, match="is missing"):
        query.run(3, rows(3, key="key-1"))


def test_damaged_copies_are_replaced_wherever_they_are_damaged(store, address, tmp_path):
    query = Query(files_at(address))
    query.run(0, [row for number in range(500) for row in rows(0, key=f"key-{number}")])
    (copy,) = (tmp_path / "copies").iterdir()
    content = copy.read_bytes()
    for place in range(0, len(content), 1_000):
        copy.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert known_to(query.folder().read(0, 0).partition)["key-7"][2] == 1
    assert copy.read_bytes() == content


def test_copies_are_bounded_in_bytes_and_those_go_that_were_not_used_for_the_longest_time(tmp_path):
    copies = MachineCopies(tmp_path, 250)
    for number, name in enumerate("abc"):
        copies.map(name, lambda: bytes(100), again=False)
        os.utime(tmp_path / name, (number, number))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "c"]
    assert copies.map("d", lambda: None, again=False) is None
    copies.map("b", lambda: None, again=False)
    copies.keep("e", bytes(100))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "e"]


def test_a_file_that_is_larger_than_all_copies_may_be_is_not_kept_and_costs_no_other_its_place(tmp_path):
    copies = MachineCopies(tmp_path, 250)
    copies.keep("small", bytes(100))
    found = copies.map("large", lambda: bytes(251), again=False)
    assert found is not None
    assert len(found) == 251
    assert [path.name for path in tmp_path.iterdir()] == ["small"]


def test_an_idle_look_for_what_is_due_is_one_request_for_any_number_of_partitions(store, address):
    queries = [Query(files_at(address), partitions=8) for _ in range(8)]
    for partition, query in enumerate(queries):
        query.run(0, rows(1, at=partition), partition=partition)
    folder = StateFolder(address, query="q", partitions=8)
    assert not folder.due_by(2.5)
    store.requests.clear()
    assert not folder.due_by(2.5)
    assert folder.due_by(3)  # the gap of partition 0 began at 0
    assert store.requests == {"HEAD": 2}
    for partition, query in enumerate(queries):
        query.run(1, rows(0, at=partition), partition=partition)
    store.requests.clear()
    assert not folder.due_by(100)
    assert store.requests == {"HEAD": 2 + 8, "GET": 8}  # the new batch, none after it, and the headers of 8 partitions


def test_requests_that_the_store_turns_away_are_made_again(store, address):
    files = files_at(address)
    store.failing = 3
    files.write("file", b"content")
    store.failing = 3
    assert files.read("file") == b"content"
    store.failing = 3
    assert files.names("") == ["file"]


def test_an_answer_that_is_longer_than_what_was_asked_for_is_asked_for_again(store, address, monkeypatch):
    files = files_at(address)
    files.write("file", b"content")
    store.failing, store.fails_at = 3, "GET"
    assert files.read("file") == b"content"
    store.failing = 3
    assert files.read_ends("file", 2, 3) == b"coent"
    assert store.failing == 0
    monkeypatch.setattr(state_files, "MAX_ATTEMPTS", 2)
    store.failing = 10**6
    with pytest.raises(StoreFailed, match="reading s3://bucket/a/state/file failed"):
        files.read("file")


def test_an_upload_that_is_reported_as_failed_counts_if_the_object_is_there(store, address, monkeypatch):
    """As when the answer to the end of an upload in parts was lost: asked again, the store no longer knows the upload."""
    files = files_at(address)
    assert isinstance(files, ArrowFiles)
    upload = files._upload

    def upload_and_lose_the_answer(target: str, content: bytes) -> None:
        if content:
            upload(target, content)
        raise OSError("NoSuchUpload")

    monkeypatch.setattr(files, "_upload", upload_and_lose_the_answer)
    files.write("file", b"content")
    files.write_new("new", b"content")
    assert store.objects.keys() == {"bucket/a/state/file", "bucket/a/state/new"}
    with pytest.raises(StoreFailed, match="NoSuchUpload"):
        files.write("other", b"")


def test_a_store_that_fails_for_good_is_an_error_and_not_an_empty_state(store, address, monkeypatch):
    monkeypatch.setattr(state_files, "MAX_ATTEMPTS", 2)
    files = files_at(address)
    store.failing = 10**6
    for act in (lambda: files.read("file"), lambda: files.names(""), lambda: files.write("file", b"")):
        with pytest.raises(StoreFailed, match="bucket/a/state"):
            act()


def nothing_set(name: str) -> None:
    return None


# -- settings ----------------------------------------------------------------------------------------------------------


def test_tasks_use_the_settings_of_sparks_own_connector(store):
    settings = {
        "spark.hadoop.fs.s3a.endpoint": f"http://{store.endpoint}",
        "spark.hadoop.fs.s3a.endpoint.region": "here",
        "spark.hadoop.fs.s3a.access.key": "another-key",
        "spark.hadoop.fs.s3a.secret.key": "a/secret+with&signs",
        "spark.hadoop.fs.s3a.bucket.bucket.access.key": "key-of-the-bucket",
    }
    location = location_for_tasks("s3a://bucket/state", settings.get)
    files = files_at(location)
    files.write("file", b"content")
    assert (store.keys_used, files.root) == ({"key-of-the-bucket"}, "s3://bucket/state")
    assert "access_key=key-of-the-bucket" in location


def test_without_settings_those_of_aws_count(store, monkeypatch):
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{store.endpoint}",
        "AWS_REGION": "here",
        "AWS_ACCESS_KEY_ID": "key-of-the-environment",
        "AWS_SECRET_ACCESS_KEY": "secret",
    }.items():
        monkeypatch.setenv(name, value)
    files_at("s3://bucket/state").write("file", b"content")
    assert store.objects == {"bucket/state/file": b"content"}
    assert store.keys_used == {"key-of-the-environment"}


def test_an_endpoint_without_a_scheme_has_that_of_the_connection():
    settings = {"spark.hadoop.fs.s3a.endpoint": "host:9000", "spark.hadoop.fs.s3a.connection.ssl.enabled": "false"}
    assert location_for_tasks("s3a://b/s", settings.get) == "s3://b/s?endpoint_override=host%3A9000&scheme=http"
    assert location_for_tasks("s3a://b/s", nothing_set) == "s3://b/s"


def test_other_locations_stay_as_they_are(tmp_path, monkeypatch, address):
    monkeypatch.chdir(tmp_path)
    assert location_for_tasks("state", nothing_set) == str(tmp_path / "state")
    assert isinstance(files_at(location_for_tasks("state", nothing_set)), LocalFiles)
    plain = address.replace("s3a", "s3")
    assert location_for_tasks(plain, nothing_set) == plain


def test_a_setting_that_nobody_knows_is_refused_without_the_secret():
    with pytest.raises(InvalidArgument, match=r"state can't be kept at s3://b/s: .*typo") as refused:
        files_at("s3://b/s?region=here&secret_key=hidden&typo=1")
    assert "hidden" not in str(refused.value)
