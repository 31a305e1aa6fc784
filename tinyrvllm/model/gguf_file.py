"""A GGUF file: its metadata, and its tensors as views on a memory map."""

import mmap
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self, TypeVar, overload

import numpy as np

from tinyrvllm.model.gguf_header import GGUFError, Header, StringArray, TensorInfo, Value

__all__ = ["GGUFError", "GGUFFile", "StringArray", "TensorInfo"]

DEFAULT_ALIGNMENT: Final = 32  # the format's
MAX_ALIGNMENT: Final = 1 << 20
MAX_MESSAGE: Final = 800  # letters; a damaged file may have a name of megabytes to show
_REQUIRED: Final = object()
T = TypeVar("T")
D = TypeVar("D")


class GGUFFile:
    """A GGUF file, mapped and never read whole. Opening it checks the whole header.

    `metadata` maps keys to Python scalars, numpy arrays (copies) and `StringArray`s; `tensors` maps
    names to `TensorInfo`. Usable as a context manager. Raises GGUFError.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        memory = _map_file(self.path)
        try:
            header = Header(memory, self.error)
            tensor_count, key_count = header.counts()
            self.metadata: Mapping[str, Value] = header.keys(key_count)
            self.tensors: Mapping[str, TensorInfo] = header.tensors(
                tensor_count, self._checked_alignment()
            )
        except GGUFError:
            memory.close()  # Windows lets nobody delete or mend a file that is mapped
            raise
        self._memory: np.ndarray | None = np.frombuffer(memory, np.uint8)

    @property
    def memory(self) -> np.ndarray:
        """The whole file: uint8 [file size], a read-only view on the memory map."""
        if self._memory is None:
            raise self.error("the file is closed: no tensor can be read from it any more")
        return self._memory

    def data(self, name: str) -> np.ndarray:
        """A tensor as the file has it: uint8 [rows, row_bytes], a view on the memory map."""
        tensor = self.tensors[name]
        data = self.memory[tensor.offset : tensor.offset + tensor.nbytes]
        return data.reshape(-1, tensor.row_bytes)

    def close(self) -> None:
        """Let the map go. The system unmaps the file when the last view on it is gone as well."""
        self._memory = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def error(self, message: str) -> GGUFError:
        """A GGUFError about this file, to be raised by whoever finds the mistake."""
        return GGUFError(f"{self.path.name}: {message[:MAX_MESSAGE]}")

    @overload
    def get(self, key: str, kind: type[T]) -> T: ...
    @overload
    def get(self, key: str, kind: type[T], default: D) -> T | D: ...
    def get(self, key: str, kind: type[T], default: object = _REQUIRED) -> object:
        """The value of `key`, which must be a `kind`: int, float, bool, str, ndarray, StringArray.

        Raises GGUFError for a value of another kind, and for a missing key without a default.
        """
        if key not in self.metadata:
            if default is _REQUIRED:
                raise self.error(f"the key {key!r} is missing, and no default is right for it")
            return default
        value = self.metadata[key]
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise self.error(
                f"the key {key!r} must be of type {kind.__name__}, "
                f"found {type(value).__name__} {str(value)[:40]!r}"
            )
        return value

    def _checked_alignment(self) -> int:
        alignment = self.get("general.alignment", int, DEFAULT_ALIGNMENT)
        if not 8 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
            raise self.error(
                "the key 'general.alignment' must be a power of two between 8 and "
                f"{MAX_ALIGNMENT}, found {alignment}"
            )
        return alignment


def _map_file(path: Path) -> mmap.mmap:
    try:
        with open(path, "rb", opener=_open_without_waiting) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise GGUFError(f"{path} is not a file: a GGUF file is expected")
            if status.st_size == 0:
                raise GGUFError(f"{path.name}: the file is empty")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
        raise GGUFError(f"{path} cannot be opened: {error}") from None


def _open_without_waiting(path: str, flags: int) -> int:
    # Opening a named pipe would wait for its writer for ever. Windows has no such flag or pipe.
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
