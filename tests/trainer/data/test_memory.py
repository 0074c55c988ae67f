"""Corpora larger than the memory that may be taken: what a program holds does not grow with its input."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard

from tests.trainer import tiny

MIB = 1 << 20
NOT_ON_WINDOWS = pytest.mark.skipif(sys.platform == "win32", reason="its peak memory is not measured")

# Reads all documents of a folder and prints how many bytes they have and how much memory was taken.
READ = """
import sys
from pathlib import Path
import numpy, pyarrow, pyarrow.parquet, zstandard
from tests.peak_memory import peak_bytes
from trainer.data.document import Limit
from trainer.data.inputs import find
from trainer.data.readers import documents
before = peak_bytes()
total = 0
for file in find(Path(sys.argv[1]), "s").files:
    for document in documents(file, "text", Limit(1 << 20), Path(sys.argv[2]), lambda count: None):
        total += len(document.data)
print(total, peak_bytes() - before)
"""

PREPARE = """
import sys
from tests.peak_memory import peak_bytes
from trainer.cli import main
code = main(sys.argv[1:])
print(peak_bytes())
sys.exit(code)
"""


def run(code: str, *arguments: str) -> list[int]:
    """The numbers that a program prints last."""
    child = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=tiny.ROOT, capture_output=True, encoding="utf-8", timeout=300
    )
    assert child.returncode == 0, child.stderr
    return [int(word) for word in child.stdout.splitlines()[-1].split()]


ENCODE = """
import sys
from pathlib import Path
from tests.peak_memory import peak_bytes
from trainer.bpe import Encoder
encoder = Encoder(Path(sys.argv[1]).read_bytes())
encoder.encode("warm up", what="text")
before = peak_bytes()
print(encoder.encode("some words of a long text " * (int(sys.argv[2]) // 26), what="text").size, peak_bytes() - before)
"""


@NOT_ON_WINDOWS
@pytest.mark.optional("its peak memory is not measured on Windows")
def test_a_long_document_takes_a_few_times_its_size(prepared_once: Path) -> None:
    """6 million ids, 8 bytes each, a few copies; in one piece the library alone would take more than 600 MB."""
    tokens, peak = run(ENCODE, str(prepared_once / "tokenizer.json"), str(6 * MIB))
    assert tokens > 5_000_000
    assert peak < 400 * MIB


def paragraph(number: int) -> str:
    """Text of about 2 KB that differs from document to document."""
    return " ".join(f"word{(number * 31 + i * 17) % 997}" for i in range(260))


def packed_lines(path: Path, megabytes: int) -> None:
    """JSON lines of so much text, compressed as they are written."""
    compressor = zstandard.ZstdCompressor(level=1)
    with path.open("wb") as file, compressor.stream_writer(file) as writer:
        some = [paragraph(number) for number in range(200)]
        for number in range(megabytes * MIB // 2000):
            writer.write(json.dumps({"text": some[number % 200]}).encode() + b"\n")


@NOT_ON_WINDOWS
@pytest.mark.optional("its peak memory is not measured on Windows")
def test_reading_takes_a_small_part_of_the_text(tmp_path: Path) -> None:
    """300 MB of text in JSON lines and Parquet, in 64 MiB."""
    import pyarrow
    import pyarrow.parquet

    folder, scratch = tmp_path / "s", tmp_path / "scratch"
    folder.mkdir()
    scratch.mkdir()
    packed_lines(folder / "a.jsonl.zst", 150)
    some = [paragraph(number) for number in range(200)]
    schema = pyarrow.schema([("text", pyarrow.string())])
    with pyarrow.parquet.ParquetWriter(
        folder / "b.parquet", schema, compression="zstd", use_dictionary=False
    ) as writer:
        for _ in range(8):
            writer.write_table(pyarrow.table({"text": some * 47}, schema), row_group_size=9400)
    total, peak = run(READ, str(folder), str(scratch))
    assert total > 290_000_000
    assert peak < 64 * MIB


@NOT_ON_WINDOWS
@pytest.mark.optional("its peak memory is not measured on Windows")
def test_preparing_takes_no_more_memory_for_a_larger_corpus(tmp_path: Path, prepared_once: Path) -> None:
    """16 MiB of text make 17 MB of ids: all of either would be seen above what a corpus of 1 MiB takes."""
    peaks = []
    for megabytes in (1, 16):
        packed_lines(tmp_path / f"{megabytes}.jsonl.zst", megabytes)
        source, work = f"--source=s={tmp_path / f'{megabytes}.jsonl.zst'}", str(tmp_path / f"work{megabytes}")
        sizes = [f"--tokenizer={prepared_once / 'tokenizer.json'}", "--context-length=64", "--processes=1"]
        peaks += run(PREPARE, "prepare", source, work, *sizes, "--title=t", "--license=l")
    ids = (tmp_path / "work16/ids.bin").stat().st_size
    assert ids > 12 * MIB
    assert peaks[1] - peaks[0] < 10 * MIB, peaks
