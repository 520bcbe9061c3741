"""Every place of ours that asks for a sync, by the functions that lead there (``syncs.named``), and what notices when it is
left out.

Each is listed with one subject that reaches it; what leads to the same line through another is left out with it.
``python -m tests.power_loss --take-outs`` leaves out one after another and counts the objections.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

BACKUP, RESTORE, REPLACING, EPOCHS = "backup", "restore", "restore, replacing", "epochs in a file"
DOWNLOADED, DOWNLOAD = "downloaded backup", "remote.ApiBroker._download"
STATE, TABLE = "Spark state", "parquet table"
WRITE, MAKE, SHOW = "files.LocalFiles.write", "files.LocalFiles.make_folder", "files.LocalFiles.show_folder"
SYNC, TABLES = "files.LocalFiles._sync_folder", "parquet_table.ParquetTable"

NEEDED: Sequence[tuple[str, str]] = [
    (BACKUP, "folder store.SqliteReader.backup > private_files.put_in_place#2 > private_files.write_through"),
    (DOWNLOADED, f"file {DOWNLOAD}#1"),
    (DOWNLOADED, f"folder {DOWNLOAD}#2"),
    (RESTORE, "folder restore.restore_backup > private_files.put_in_place#2 > private_files.write_through"),
    (REPLACING, "folder restore._moved_aside > restore._rename#1 > private_files.write_through"),
    (REPLACING, "folder restore._moved_aside > restore._rename#2 > private_files.write_through"),
    (EPOCHS, "file epochs.FileEpochs._raise#1"),
    (EPOCHS, "folder epochs.FileEpochs._raise#2 > epochs._sync_folder"),
    (STATE, f"file {WRITE}#2 > files.LocalFiles._write_through > files.LocalFiles._sync"),
    (STATE, f"folder batch_versions.StateFolder.write_full > {WRITE}#3 > {SYNC}"),
    (STATE, f"folder binding.write_binding > {WRITE}#3 > {SYNC}"),
    (STATE, f"folder {MAKE}#1 > {MAKE}#2 > {SYNC}"),
    (STATE, f"folder {WRITE}#1 > {MAKE}#2 > {SYNC}"),
    (STATE, f"folder files.LocalFiles.write_new > {WRITE}#3 > {SYNC}"),
    (TABLE, f"file {WRITE}#1 > files.LocalFiles._write_through > files.LocalFiles._sync"),
    (TABLE, f"file {TABLES}.add > {SHOW}#1 > files.LocalFiles.sync#1"),
    (TABLE, f"folder {MAKE}#1 > {MAKE}#2 > {SYNC}"),
    (TABLE, f"folder {SHOW}#1 > files.LocalFiles.sync#2 > {SYNC}"),
    (TABLE, f"folder {TABLES}._note > {WRITE}#2 > {SYNC}"),
    (TABLE, f"folder {TABLES}.add > {SHOW}#2 > {SYNC}"),
]
"""Without them something is lost: the subject objects."""

PUT_IN_PLACE = "put_in_place promises a durable file whoever wrote it; here it was SQLite, which synced it before"
REDUNDANT: Mapping[tuple[str, str], str] = {
    (
        BACKUP,
        "file store.SqliteReader.backup > private_files.put_in_place#1 > private_files.write_through",
    ): PUT_IN_PLACE,
    (RESTORE, "file restore.restore_backup > private_files.put_in_place#1 > private_files.write_through"): PUT_IN_PLACE,
    (TABLE, f"folder {TABLES}.lock > {MAKE}#2 > {SYNC}"): (
        "the first batch syncs the same folder once more, before anything is acknowledged"
    ),
}
"""Nothing is lost without these, and why they stay."""


def places_of(subject: str) -> list[str]:
    return [site for name, site in [*NEEDED, *REDUNDANT] if name == subject]
