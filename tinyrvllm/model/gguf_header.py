"""The header of a GGUF file: a small parser over a memory map that trusts nothing it reads.

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
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from struct import Struct
from typing import Final, overload

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from tinyrvllm.errors import TinyrvllmError

# No real header reaches these limits (Gemma 3 with its merges: 15 MB and 777,000 strings; the
# largest models: 2,000 tensors). They bound what a false header can cost us before it is refused.
MAX_HEADER_BYTES: Final = 1 << 25
MAX_STRING_BYTES: Final = 1 << 24
MAX_KEYS: Final = 1 << 12
MAX_TENSORS: Final = 1 << 13
MAX_ELEMENTS: Final = 1 << 20  # of one array, and strings of all arrays together
MAX_KEY_BYTES: Final = (1 << 16) - 1  # the format's own limit
MAX_NAME_BYTES: Final = 64  # the format's own limit
MAX_DIMENSIONS: Final = 4  # the format's own limit

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


class GGUFError(TinyrvllmError):
    """A GGUF file that cannot be used; the message names the file and the key or tensor."""


class StringArray(Sequence[str]):
    """An array of strings, decoded when asked for: a vocabulary has up to 262,144 of them.

    Raises GGUFError from an access to a string that is not UTF-8.
    """

    def __init__(self, data: bytes, starts: list[int], what: str) -> None:
        self._data = data  # length u64, bytes, length u64, bytes, ...
        self._starts = starts  # [count + 1] where each string's length lies; the last: the end
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
        return self._decoded(self._starts[index : index + 2])[0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._decoded(self._starts))

    def _decoded(self, starts: list[int]) -> list[str]:
        data = self._data
        try:
            return [data[start + 8 : end].decode() for start, end in pairwise(starts)]
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


class Header:
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
        begin, position, unpack = self.position, 0, _U64.unpack_from
        starts: list[int] = []
        with memoryview(self.memory)[begin : self.end] as rest:
            try:
                for _ in range(count):  # a plain loop: each string's place depends on the last
                    starts.append(position)
                    position += 8 + unpack(rest, position)[0]
            except (struct.error, OverflowError):
                raise self.error(
                    f"string {len(starts) - 1} of key {key!r} runs past the end of the header"
                ) from None
        self.skip(position, f"the key {key!r}")
        starts.append(position)
        data = self.memory[begin : self.position]
        return StringArray(data, starts, str(self.error(f"the key {key!r}")))

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

    def number(self, form: Struct, what: str) -> int | float:
        start = self.position
        self.skip(form.size, what)
        return form.unpack_from(self.memory, start)[0]

    def skip(self, count: int, what: str) -> None:
        """Move on by `count` bytes, which hold `what`."""
        if count > self.end - self.position:
            limit = "file" if self.end == len(self.memory) else f"{MAX_HEADER_BYTES} bytes believed"
            raise self.error(f"{what} ({count} bytes) runs past the end of the {limit}")
        self.position += count
