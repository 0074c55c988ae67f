"""Parquet: a document a row, from a column of texts, row group by row group."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from auditkit.errors import Unsupported
from trainer.data.document import Limit, RawDocument, bad, check_text

_BATCH_BYTES = 1 << 22  # of text, about, that are in memory at once
_MOST_ROWS = 256
_BUFFER = 1 << 20  # bytes read from the disk at a time


def documents(path: Path, name: str, key: str, limit: Limit) -> Iterator[RawDocument]:
    """The documents of a file, called by its name and their row, counted from 1.

    Raises Unsupported where pyarrow is not installed, BadArtifact for a file that is no Parquet, a missing column or
    one of another type, an empty field, and text that is not UTF-8.
    """
    arrow = _library()
    row = 0
    try:
        with arrow.parquet.ParquetFile(path, buffer_size=_BUFFER, pre_buffer=False) as file:
            _check_column(arrow, file.schema_arrow, key, name)
            for group in range(file.num_row_groups):
                for batch in file.iter_batches(
                    _rows_at_once(file.metadata.row_group(group)), row_groups=[group], columns=[key], use_threads=False
                ):
                    for data in _values(arrow, batch.column(0)):
                        row += 1
                        yield _document(data, f"{name}:{row}", f"{name}, row {row}", key, limit)
    except (arrow.lib.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0].lower() if str(error) else type(error).__name__
        raise bad(f"{name}, after row {row}", f"not a Parquet file that can be read: {reason}") from error


def _library() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        hint = "pip install pyarrow, or the extra auditkit-verifier[trainer]"
        raise Unsupported("*.parquet files need the pyarrow library, which is not installed", hint=hint) from error
    return pyarrow


def _check_column(arrow: Any, schema: Any, key: str, name: str) -> None:
    if schema.names.count(key) != 1:
        raise bad(name, f"there is no column {key!r}, or more than one (--text-key names another)")
    kind = schema.field(key).type
    inner = kind.value_type if arrow.types.is_dictionary(kind) else kind
    if not (arrow.types.is_string(inner) or arrow.types.is_large_string(inner) or arrow.types.is_string_view(inner)):
        raise bad(name, f"column {key!r} holds {kind}, not texts")


def _rows_at_once(group: Any) -> int:
    """By the mean of the row group, so that a batch has a few megabytes whatever a row has."""
    mean = int(group.total_byte_size) // max(1, int(group.num_rows))
    return max(1, min(_MOST_ROWS, _BATCH_BYTES // max(1, mean)))


def _values(arrow: Any, column: Any) -> Any:
    """The fields of a column as bytes: its texts may be no UTF-8, which decoding would tell without a place."""
    if arrow.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if arrow.types.is_string_view(column.type):
        column = column.cast(arrow.large_string())
    large = arrow.types.is_large_string(column.type)
    return column.cast(arrow.large_binary() if large else arrow.binary()).to_pylist()


def _document(data: bytes | None, called: str, where: str, key: str, limit: Limit) -> RawDocument:
    if data is None:
        raise bad(where, f"column {key!r} has no text (null)")
    limit.check(len(data), where)
    check_text(data, where)
    return RawDocument(called, data)
