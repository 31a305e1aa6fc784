"""Reads a GGUF file: a small parser over a memory map that trusts nothing it reads.

    magic "GGUF" | version u32 | tensor count u64 | key count u64        everything little-endian
    keys:        name, type u32, value                     a string is: length u64, UTF-8 bytes
    tensors:     name, dimension count u32, dimensions u64 each, type u32, offset u64
    padding to `general.alignment`
    data:        each tensor's blocks, at its offset from here

The `gguf` package has a reader too. It believes the header, so a damaged file ends there in a
traceback or in gigabytes of memory; here it ends in a `GGUFError` that names the key or tensor.
The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import math
import mmap
import os
import stat
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from struct import Struct
from typing import Final, Self, TypeVar, overload

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from tinyrvllm.errors import TinyrvllmError

# No real header reaches these limits (Gemma 3 with its merges: 15 MB and 777,000 strings; the
# largest models: 2,000 tensors). They bound what a false header can cost us before it is refused.
MAX_HEADER_BYTES: Final = 1 << 25
MAX_STRING_BYTES: Final = 1 << 24
MAX_KEYS: Final = 1 << 12
MAX_TENSORS: Final = 1 << 14
MAX_ELEMENTS: Final = 1 << 20  # of one array, and strings of all arrays together
MAX_KEY_BYTES: Final = (1 << 16) - 1  # the format's own limit
MAX_NAME_BYTES: Final = 64  # the format's own limit
MAX_DIMENSIONS: Final = 4  # the format's own limit
MAX_ALIGNMENT: Final = 1 << 20
DEFAULT_ALIGNMENT: Final = 32

_NUMBERS: Final = {  # the letter both struct and numpy know each number by
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
}
_U32: Final = Struct("<I")
_U64: Final = Struct("<Q")
_REQUIRED: Final = object()
T = TypeVar("T")
D = TypeVar("D")


class GGUFError(TinyrvllmError):
    """A GGUF file that cannot be used; the message names the file and the key or tensor."""


class StringArray(Sequence[str]):
    """An array of strings, decoded when asked for: a vocabulary has up to 262,144 of them.

    Raises GGUFError from an access to a string that is not UTF-8.
    """

    def __init__(self, data: bytes, starts: "array[int]", what: str) -> None:
        self._data = data  # length u64, bytes, length u64, bytes, ...
        self._starts = starts  # [count + 1] where each string's bytes begin; the last one's end + 8
        self._what = what  # names the file and the key in an error

    def __len__(self) -> int:
        return len(self._starts) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        return next(self._decoded(self._starts[index : index + 2]))

    def __iter__(self) -> Iterator[str]:
        return self._decoded(self._starts)

    def _decoded(self, starts: "array[int]") -> Iterator[str]:
        try:
            for start, next_start in pairwise(starts):
                yield self._data[start : next_start - 8].decode()
        except UnicodeDecodeError as error:
            raise GGUFError(f"{self._what} holds a string that is not UTF-8: {error}") from None

    def __repr__(self) -> str:
        return f"<{len(self)} strings>"


Value = str | int | float | bool | np.ndarray | StringArray


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies and what it holds. `shape` is numpy's order: (rows, columns)."""

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    offset: int  # bytes from the start of the file
    nbytes: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one row: of `shape[-1]` elements."""
        return self.nbytes // math.prod(self.shape[:-1])


class GGUFFile:
    """A GGUF file, mapped and never read whole. Opening it checks the whole header.

    `metadata` maps keys to Python scalars, numpy arrays (copies) and `StringArray`s; `tensors` maps
    names to `TensorInfo`. Usable as a context manager. Raises GGUFError.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        memory = _map_file(self.path)
        try:
            header = _Header(memory, self.error)
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
        return GGUFError(f"{self.path.name}: {message}")

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


class _Header:
    """A position in the header; every read is checked against its end before it happens."""

    def __init__(self, memory: mmap.mmap, error: Callable[[str], GGUFError]) -> None:
        self.memory = memory
        self.error = error
        self.end = min(len(memory), MAX_HEADER_BYTES)
        self.position = 0
        self.strings_left = MAX_ELEMENTS

    def counts(self) -> tuple[int, int]:
        """(tensor count, key count), after the magic and the version."""
        self.skip(4, "the magic")
        magic = self.memory[:4]
        if magic != b"GGUF":
            raise self.error(f"not a GGUF file: it begins with {magic!r} instead of b'GGUF'")
        version = self.u32("the version")
        if version & 0xFFFF == 0 and version:
            raise self.error("a big-endian GGUF file; only little-endian ones are supported")
        if version not in (2, 3):
            raise self.error(f"GGUF version {version}; versions 2 and 3 are supported")
        tensor_count = self.u64("the tensor count")
        key_count = self.u64("the key count")
        if tensor_count > MAX_TENSORS or key_count > MAX_KEYS:
            raise self.error(
                f"the header claims {tensor_count} tensors and {key_count} keys; "
                f"at most {MAX_TENSORS} and {MAX_KEYS} are believed"
            )
        return tensor_count, key_count

    def keys(self, count: int) -> dict[str, Value]:
        metadata: dict[str, Value] = {}
        for index in range(count):
            key = self.string(f"the name of key {index}", MAX_KEY_BYTES)
            if not key or key in metadata:
                raise self.error(f"key {index} is {'a duplicate' if key else 'empty'}: {key!r}")
            metadata[key] = self.value(key)
        return metadata

    def value(self, key: str) -> Value:
        kind = self.value_type(key)
        if kind is GGUFValueType.STRING:
            return self.string(f"the key {key!r}", MAX_STRING_BYTES)
        if kind is not GGUFValueType.ARRAY:
            return self.number(Struct("<" + _NUMBERS[kind]), f"the key {key!r}")
        kind = self.value_type(key)
        count = self.u64(f"the length of key {key!r}")
        if kind is GGUFValueType.ARRAY:
            raise self.error(f"the key {key!r} is an array of arrays, which is not supported")
        self.strings_left -= count if kind is GGUFValueType.STRING else 0
        if count > MAX_ELEMENTS or self.strings_left < 0:
            raise self.error(
                f"the key {key!r} claims {count} elements; {MAX_ELEMENTS} are believed, and as "
                "many strings in the whole header"
            )
        if kind is GGUFValueType.STRING:
            return self.string_array(count, key)
        # A byte of a bool may hold more than 0 and 1, which numpy's own bool must not.
        dtype = np.dtype("<B" if kind is GGUFValueType.BOOL else "<" + _NUMBERS[kind])
        start = self.position
        self.skip(count * dtype.itemsize, f"the key {key!r} of {count} elements")
        values = np.frombuffer(self.memory[start : self.position], dtype)
        return values != 0 if kind is GGUFValueType.BOOL else values

    def string_array(self, count: int, key: str) -> StringArray:
        memory, last, unpack = self.memory, self.end - 8, _U64.unpack_from
        starts = array("q")
        begin = position = self.position
        for index in range(count):  # a plain loop: a string's place depends on all before it
            if position > last:
                raise self.error(f"string {index} of key {key!r} runs past the end of the header")
            starts.append(position + 8 - begin)
            position += 8 + unpack(memory, position)[0]
        self.skip(position - begin, f"the key {key!r}")
        starts.append(position + 8 - begin)
        return StringArray(memory[begin:position], starts, str(self.error(f"the key {key!r}")))

    def tensors(self, count: int, alignment: int) -> dict[str, TensorInfo]:
        tensors: dict[str, TensorInfo] = {}
        for index in range(count):
            tensor = self.tensor(index)
            if tensor.name in tensors:
                raise self.error(f"two tensors are named {tensor.name!r}")
            tensors[tensor.name] = tensor
        data_start = -(-self.position // alignment) * alignment
        return self.placed(tensors, data_start, alignment)

    def tensor(self, index: int) -> TensorInfo:
        """The next tensor, its offset still counted from the start of the data."""
        name = self.string(f"the name of tensor {index}", MAX_NAME_BYTES)
        dimension_count = self.u32(f"the dimension count of tensor {name!r}")
        if not 1 <= dimension_count <= MAX_DIMENSIONS:
            raise self.error(f"tensor {name!r} has {dimension_count} dimensions; 1 to 4 expected")
        dimensions = [
            self.u64(f"a dimension of tensor {name!r}") for _ in range(dimension_count)
        ]
        code = self.u32(f"the type of tensor {name!r}")
        if code not in GGML_QUANT_SIZES:
            known = ", ".join(kind.name for kind in GGML_QUANT_SIZES)
            raise self.error(f"tensor {name!r} has the unknown type {code}; known are {known}")
        kind = GGMLQuantizationType(code)
        block, block_bytes = GGML_QUANT_SIZES[kind]
        if 0 in dimensions or dimensions[0] % block:
            raise self.error(
                f"tensor {name!r} has the dimensions {dimensions}; each must be at least 1 and "
                f"the first a multiple of {kind.name}'s block of {block}"
            )
        nbytes = math.prod(dimensions) // block * block_bytes  # Python's integers do not wrap
        offset = self.u64(f"the offset of tensor {name!r}")
        return TensorInfo(name, tuple(reversed(dimensions)), kind, offset, nbytes)

    def placed(
        self, tensors: dict[str, TensorInfo], data_start: int, alignment: int
    ) -> dict[str, TensorInfo]:
        """The tensors with offsets from the start of the file, checked to lie in it side by side."""
        end, previous = 0, ""
        for tensor in sorted(tensors.values(), key=lambda tensor: tensor.offset):
            if tensor.offset % alignment:
                raise self.error(
                    f"tensor {tensor.name!r} lies at {tensor.offset}, "
                    f"which is not a multiple of the alignment {alignment}"
                )
            if tensor.offset < end:
                raise self.error(f"the tensors {previous!r} and {tensor.name!r} overlap")
            end, previous = tensor.offset + tensor.nbytes, tensor.name
            if data_start + end > len(self.memory):
                raise self.error(
                    f"tensor {tensor.name!r} ends at byte {data_start + end}, but the file has "
                    f"{len(self.memory)}: was the download cut short?"
                )
        return {
            name: TensorInfo(name, t.shape, t.type, data_start + t.offset, t.nbytes)
            for name, t in tensors.items()
        }

    def value_type(self, key: str) -> GGUFValueType:
        code = self.u32(f"the type of key {key!r}")
        if code >= len(GGUFValueType):
            raise self.error(f"the key {key!r} has the unknown value type {code}")
        return GGUFValueType(code)

    def string(self, what: str, longest: int) -> str:
        length = self.u64(what)
        if length > longest:
            raise self.error(f"{what} claims {length} bytes; at most {longest} are believed")
        start = self.position
        self.skip(length, what)
        try:
            return self.memory[start : self.position].decode()
        except UnicodeDecodeError as error:
            raise self.error(f"{what} is not UTF-8: {error}") from None

    def u32(self, what: str) -> int:
        return int(self.number(_U32, what))

    def u64(self, what: str) -> int:
        return int(self.number(_U64, what))

    def number(self, struct: Struct, what: str) -> int | float:
        start = self.position
        self.skip(struct.size, what)
        return struct.unpack_from(self.memory, start)[0]

    def skip(self, count: int, what: str) -> None:
        """Move on by `count` bytes, which hold `what`."""
        if count > self.end - self.position:
            limit = "file" if self.end == len(self.memory) else f"{MAX_HEADER_BYTES} bytes believed"
            raise self.error(f"{what} ({count} bytes) runs past the end of the {limit}")
        self.position += count
