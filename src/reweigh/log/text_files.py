"""The bytes of a text file, plain or gzip, watched on their way to the parser."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from reweigh.errors import InputError, ResourceError

BLOCK = 1 << 24
GZIP = b"\x1f\x8b"


@contextmanager
def open_stream(path: Path) -> Iterator[pa.NativeFile]:
    """The decompressed bytes; what goes wrong while they are read is told as it is."""
    try:
        with path.open("rb") as file:
            packed = file.read(2) == GZIP
    except OSError as error:
        raise ResourceError(f"cannot read {str(path)!r}: {error.strerror}") from error
    try:
        with pa.input_stream(str(path), compression="gzip" if packed else None) as stream:
            yield stream
    except OSError as error:
        if packed and not isinstance(error, ResourceError):
            raise InputError(
                f"{str(path)!r} is damaged or cut off and cannot be decompressed: {error}"
            ) from error
        raise ResourceError(f"cannot read {str(path)!r}: {error}") from error


class TextStream:
    """A stream that counts line ends, notices NUL bytes and ends with exactly one line end.

    Blank lines at the end of a file are no rows, and the parser wants the header's line end: so
    a block is given only when it is known whether anything but line ends follows.
    """

    def __init__(self, stream: pa.NativeFile) -> None:
        self.stream = stream
        self.closed = False
        self.line_ends = 0
        self.has_nul = False
        self._ahead = b""

    def read(self, size: int = -1) -> bytes:
        block = self._ahead or self.stream.read(size)
        self._ahead = self.stream.read(size)
        while self._ahead and not self._ahead.strip(b"\r\n"):
            block += self._ahead
            self._ahead = self.stream.read(size)
        if block and not self._ahead:
            block = block.rstrip(b"\r\n") + b"\n"
        self.line_ends += block.count(b"\n")
        self.has_nul = self.has_nul or 0 in block
        return block

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True


def bad_byte(path: Path) -> str | None:
    """Where the first NUL byte or the first byte that is no UTF-8 stands; None without one."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    line, column = 1, 0  # of the next byte; the columns before it in its line
    with open_stream(path) as stream:
        while True:
            block = stream.read(BLOCK)
            nul = block.find(b"\0")
            checked = block if nul < 0 else block[:nul]
            try:
                decoder.decode(checked, final=not block)
            except UnicodeDecodeError as error:
                # the decoder may have kept the first bytes of a character from the last block
                start = error.start - (len(error.object) - len(checked))
                at, what = start, "a byte that is no UTF-8; save the file as UTF-8"
            else:
                if nul < 0:
                    if not block:
                        return None
                    line, column = _advance(line, column, block)
                    continue
                at, what = nul, "a NUL byte; this is no text file, or a damaged one"
            line, column = _advance(line, column + min(at, 0), block[: max(at, 0)])
            return f"{str(path)!r}, line {line}, byte {column + 1}: {what}"


def _advance(line: int, column: int, passed: bytes) -> tuple[int, int]:
    """Line and column after these bytes."""
    ends = passed.count(b"\n")
    return line + ends, len(passed) - passed.rfind(b"\n") - 1 if ends else column + len(passed)
