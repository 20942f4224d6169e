"""Opening a file that a user named, with the ways in which that fails told on one line."""

from __future__ import annotations

import re
from io import BufferedReader
from pathlib import Path

from fase_gpu.errors import InputError

_SURROGATES = re.compile("[\ud800-\udfff]")


def open_binary(path: str | Path) -> BufferedReader:
    """The file's bytes as a buffered stream that can `peek`.

    Raises InputError when the file is absent, a folder, empty, or may not be read.
    """
    try:
        # Buffered whatever the file is: a pipe or /dev/stdin cannot be rewound after a look at its first bytes.
        stream = open(path, "rb")  # noqa: SIM115
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a folder, expected a file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    if not stream.peek(1):
        stream.close()
        raise InputError(f"{path}: is empty")
    return stream


def to_utf8(text: str) -> tuple[str, int]:
    """The text with each lone surrogate replaced by U+FFFD, and how many there were.

    Lone surrogates come from JSON escapes such as "\\ud800" and from bytes decoded with "surrogateescape". No writer
    and no tokenizer takes them.
    """
    return (text, 0) if text.isascii() else _SURROGATES.subn("\ufffd", text)


def printable(text: str) -> str:
    """The text on one line, with nothing in it that a terminal acts on."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
