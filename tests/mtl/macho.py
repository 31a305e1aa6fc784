"""Objective-C protocols in a Mach-O file: what Apple's clang wrote down of each method.

A program that names a protocol, `@protocol(MTLBuffer)`, carries its description: the compiler emits
a `protocol_t` with lists of (selector, @encode string). Layouts: Apple's objc4 sources
(runtime/objc-runtime-new.h) and <mach-o/loader.h>.

    protocol_t:  isa, name, protocols, instance methods, class methods,
                 optional instance methods, optional class methods, ...      8-byte pointers
    list:        entsize and flags u32, count u32, entries
    entry:       selector, types, implementation: pointers, or with the top flag 4-byte distances
"""

import struct
from collections.abc import Iterator

CPU_ARM64 = 0x0100000C
LC_SEGMENT_64 = 0x19
POINTER = (1 << 36) - 1  # a chained fixup keeps the address in the low 36 bits
RELATIVE = 1 << 31


class Image:
    """The arm64 part of a Mach-O file, thin or universal."""

    def __init__(self, data: bytes) -> None:
        if data[:4] == b"\xca\xfe\xba\xbe":
            count = struct.unpack_from(">I", data, 4)[0]
            parts = [struct.unpack_from(">5I", data, 8 + 20 * i) for i in range(count)]
            offset, size = next((p[2], p[3]) for p in parts if p[0] == CPU_ARM64)
            data = data[offset : offset + size]
        magic, cpu, _, _, commands = struct.unpack_from("<5I", data)
        if (magic, cpu) != (0xFEEDFACF, CPU_ARM64):
            raise ValueError(f"expected an arm64 Mach-O file, found {data[:8].hex()}")
        self.data = data
        self.segments: list[tuple[int, int, int]] = []  # address, size, place in the file
        self.sections: dict[str, tuple[int, int]] = {}  # name -> address, size
        position = 32
        for _ in range(commands):
            command, size = struct.unpack_from("<2I", data, position)
            if command == LC_SEGMENT_64:
                address, length, place, _ = struct.unpack_from("<4Q", data, position + 24)
                self.segments.append((address, length, place))
                for i in range(struct.unpack_from("<I", data, position + 64)[0]):
                    name, _, start, length = struct.unpack_from(
                        "<16s16s2Q", data, position + 72 + 80 * i
                    )
                    self.sections[name.rstrip(b"\0").decode()] = (start, length)
            position += size

    def place(self, address: int) -> int:
        for start, size, place in self.segments:
            if start <= address < start + size:
                return address - start + place
        raise ValueError(f"the address {address:#x} lies in no segment")

    def pointer(self, address: int) -> int:
        return struct.unpack_from("<Q", self.data, self.place(address))[0] & POINTER

    def word(self, address: int, form: str = "<I") -> int:
        return struct.unpack_from(form, self.data, self.place(address))[0]

    def text(self, address: int) -> str:
        start = self.place(address)
        return self.data[start : self.data.index(0, start)].decode()


def protocol_methods(data: bytes) -> Iterator[tuple[str, str, str, str]]:
    """Yields (protocol, "instance" or "class", selector, @encode string)."""
    image = Image(data)
    start, size = image.sections["__objc_protolist"]
    for at in range(start, start + size, 8):
        protocol = image.pointer(at)
        name = image.text(image.pointer(protocol + 8))
        for which, level in enumerate(["instance", "class"] * 2):
            methods = image.pointer(protocol + 24 + 8 * which)
            if methods:
                for selector, types in _method_list(image, methods):
                    yield name, level, selector, types


def _method_list(image: Image, address: int) -> Iterator[tuple[str, str]]:
    flags, count = image.word(address), image.word(address + 4)
    for i in range(count):
        if flags & RELATIVE:
            entry = address + 8 + 12 * i
            reference = entry + image.word(entry, "<i")  # of a pointer to the selector
            selector = image.pointer(reference)
            types = entry + 4 + image.word(entry + 4, "<i")
        else:
            entry = address + 8 + 24 * i
            selector, types = image.pointer(entry), image.pointer(entry + 8)
        yield image.text(selector), image.text(types)
