"""The two streams: stdout takes the result and nothing else, stderr the story; neither may turn into a traceback."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from typing import TextIO


class OutputFailed(OSError):
    """the result could not be written"""


def prepare() -> None:
    """Let both streams print any text: what the encoding lacks appears as an escape instead of an exception."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def printable(text: str) -> str:
    """Publisher-made text with its control characters escaped, so that it cannot steer a terminal or fake a line."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode("ascii") for c in text)


def emit(text: str) -> None:
    """Write the result and flush it; a reader that went away is no failure, OutputFailed is anything else."""
    if sys.stdout is None:
        raise OutputFailed(errno.EBADF, "stdout is closed")
    try:
        _write(sys.stdout, text if text.endswith("\n") else text + "\n")
    except BrokenPipeError:
        _silence(sys.stdout)
    except OSError as error:
        _silence(sys.stdout)
        # Windows reports a closed pipe as EINVAL
        if error.errno != errno.EINVAL or os.name != "nt":
            raise OutputFailed(error.errno, (error.strerror or str(error)).lower()) from error


def finish() -> None:
    """Flush both streams; what cannot be written is dropped, or the interpreter would exit with a code of its own."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            try:
                stream.flush()
            except OSError:
                _silence(stream)


def tell(line: str) -> None:
    """One line of the story on stderr; a stderr that is closed or full is ignored."""
    if sys.stderr is None:
        return
    try:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
    except OSError:
        _silence(sys.stderr)


def is_live(stream: TextIO | None) -> bool:
    """Whether a stream is a terminal that can redraw a line (TERM=dumb and files are not)."""
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"


def is_coloured(stream: TextIO | None) -> bool:
    """Whether a stream may carry colour: a live terminal and NO_COLOR empty (https://no-color.org)."""
    return is_live(stream) and not os.environ.get("NO_COLOR")


def _write(stream: TextIO, text: str) -> None:
    """Write and flush all of it; OSError if only a part can be written.

    An unbuffered stream (python -u, PYTHONUNBUFFERED) has a raw file below, whose writes may be short without an error,
    at a limit of the file size for example; the text layer does not look.
    """
    stream.flush()
    raw = getattr(stream, "buffer", None)
    if not isinstance(raw, io.RawIOBase):
        stream.write(text)
        stream.flush()
        return
    encoded = text.replace("\n", os.linesep).encode(stream.encoding or "utf-8", stream.errors or "strict")
    left = memoryview(encoded)
    while left:
        count = raw.write(left)
        if not count:
            raise OSError(errno.EAGAIN, "only a part could be written")
        left = left[count:]


def _silence(stream: TextIO) -> None:
    """Point the stream's descriptor at the null device, or the interpreter complains again while it shuts down."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
