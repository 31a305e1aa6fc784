"""Writes tests/data/bad: the smallest files that once broke something, or would break a naive reader.

    python -m tests.data.make_bad

reasons.tsv says of each file what is wrong with it and which words its error must have.
"""

import struct
from pathlib import Path

BAD = Path(__file__).parent / "bad"
U32, STRING, ARRAY = 4, 8, 9  # value types
F32, Q8_0 = 0, 8  # tensor types


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def key(name: bytes, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def number(name: bytes, value: int) -> bytes:
    return key(name, U32, struct.pack("<I", value))


def word(name: bytes, value: bytes) -> bytes:
    return key(name, STRING, text(value))


def tensor(name: bytes, dimensions: list[int], kind: int, offset: int) -> bytes:
    sizes = struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
    return text(name) + sizes + struct.pack("<IQ", kind, offset)


def gguf(*keys: bytes, tensors: tuple[bytes, ...] = (), data: int = 0) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    body = head + b"".join(keys) + b"".join(tensors)
    return body + bytes(-len(body) % 32 + data if data else 0)


LLAMA = word(b"general.architecture", b"llama")
FILES: dict[str, tuple[bytes, str, str]] = {
    # name -> (bytes, what is wrong, words of the error)
    "empty.gguf": (b"", "no byte at all, which cannot be mapped", "empty"),
    "magic.gguf": (b"GGML" + bytes(20), "an older format's magic", "not a GGUF file"),
    "short.gguf": (b"GGUF\x03\0\0", "ends within the version", "runs past the end"),
    "big_endian.gguf": (
        b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "written on a big-endian machine", "big-endian"),
    "version.gguf": (b"GGUF" + struct.pack("<IQQ", 99, 0, 0), "a version of the future", "99"),
    "many_tensors.gguf": (
        b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "claims 2^60 tensors", "claims"),
    "many_keys.gguf": (
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 63), "claims 2^63 keys, negative if signed",
        "claims"),
    "long_key.gguf": (
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, (1 << 64) - 8),
        "a key's length wraps around when 8 is added", "claims"),
    "empty_key.gguf": (gguf(number(b"", 1)), "a key without a name", "empty"),
    "duplicate_key.gguf": (gguf(LLAMA, LLAMA), "one key twice", "duplicate"),
    "value_type.gguf": (gguf(key(b"a", 77, b"")), "a value type that does not exist", "type 77"),
    "nested_array.gguf": (
        gguf(key(b"a", ARRAY, struct.pack("<IQ", ARRAY, 1))), "arrays in arrays recurse",
        "array of arrays"),
    "long_array.gguf": (
        gguf(key(b"a", ARRAY, struct.pack("<IQ", U32, 1 << 62))),
        "2^62 numbers of 4 bytes: the product wraps to 0", "claims"),
    "string_array.gguf": (
        gguf(key(b"a", ARRAY, struct.pack("<IQQ", STRING, 2, 1 << 40))),
        "a string in an array is longer than the file", "past the end"),
    "not_utf8.gguf": (gguf(word(b"a", b"\xff\xfe")), "text that is not UTF-8", "not UTF-8"),
    "alignment_zero.gguf": (
        gguf(LLAMA, number(b"general.alignment", 0)), "division by zero", "alignment"),
    "alignment_huge.gguf": (
        gguf(LLAMA, number(b"general.alignment", 1 << 31)), "padding larger than the file",
        "alignment"),
    "alignment_text.gguf": (
        gguf(LLAMA, word(b"general.alignment", b"32")), "an alignment of the wrong type",
        "alignment"),
    "no_architecture.gguf": (gguf(), "no key at all", "general.architecture"),
    "architecture.gguf": (
        gguf(word(b"general.architecture", b"mamba")), "an architecture that we do not run",
        "mamba"),
    "tensor_wraps.gguf": (
        gguf(LLAMA, tensors=(tensor(b"t", [1 << 32, 1 << 32], F32, 0),), data=32),
        "2^64 elements: a 64-bit product is 0", "was the download cut short"),
    "tensor_zero.gguf": (
        gguf(LLAMA, tensors=(tensor(b"t", [0], F32, 0),), data=32), "a dimension of 0",
        "at least 1"),
    "tensor_block.gguf": (
        gguf(LLAMA, tensors=(tensor(b"t", [33], Q8_0, 0),), data=64),
        "33 columns of blocks of 32", "multiple of Q8_0's block"),
    "tensor_type.gguf": (
        gguf(LLAMA, tensors=(tensor(b"t", [32], 1000, 0),), data=32), "an unknown tensor type",
        "unknown type 1000"),
    "tensor_dimensions.gguf": (
        gguf(LLAMA, tensors=(tensor(b"t", [1] * 9, F32, 0),), data=32), "nine dimensions", "1 to 4"),
    "tensor_unaligned.gguf": (
        gguf(LLAMA, tensors=(tensor(b"t", [4], F32, 4),), data=64), "an offset of 4",
        "not a multiple"),
    "tensor_overlap.gguf": (
        gguf(LLAMA, tensors=(tensor(b"a", [16], F32, 0), tensor(b"b", [16], F32, 32)), data=96),
        "two tensors share bytes", "overlap"),
    "tensor_twice.gguf": (
        gguf(LLAMA, tensors=(tensor(b"a", [8], F32, 0), tensor(b"a", [8], F32, 32)), data=64),
        "two tensors of one name", "two tensors"),
    "tensor_past_end.gguf": (
        gguf(LLAMA, tensors=(tensor(b"t", [8], F32, 1 << 62),), data=32),
        "an offset far past the end", "was the download cut short"),
    "endless.jinja": (
        b"{% for i in range(10 ** 9) %}x{% endfor %}", "loops for ever", "chat template"),
    "doubling.jinja": (
        (b"{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}"
        b"{% endfor %}{{ ns.s }}"), "doubles a string 60 times", "chat template"),
    "insides.jinja": (
        b"{{ ''.__class__.__mro__[1].__subclasses__() }}", "reaches for Python's classes",
        "chat template"),
    "file.jinja": (b"{% include '/etc/passwd' %}", "reads a file", "chat template"),
    "recursion.jinja": (
        b"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "a macro that calls itself",
        "chat template"),
    "syntax.jinja": (b"{% if %}", "no template at all", "chat template"),
    "wide.jinja": (b"{{ '%99999999d' % 1 }}", "formats one number 100 MB wide", "chat template"),
    "no_name.metal": (
        b"kernel void f(device float *a [[buffer(0)]], [[buffer(1)]]) {}",
        "a parameter of nothing but an attribute: once an IndexError", "parameter declaration"),
    "slot.metal": (
        b"kernel void f(device float *a [[buffer(99)]]) {}", "a buffer slot that does not exist",
        "between 0 and 30"),
    "unclosed.metal": (b"kernel void f(device float *a [[buffer(0)]]) {", "a brace too few", "error"),
    "include.metal": (b"#include <no_such_header>\n", "a header that nobody has", "no_such_header"),
    "recursive.metal": (
        (b"#include <metal_stdlib>\nusing namespace metal;\n"
        b"int f(int n) { return n ? f(n - 1) : 0; }\n"
        b"kernel void k(device int *a [[buffer(0)]]) { a[0] = f(9); }\n"),
        "recursion, which a GPU's compiler refuses", "recurs"),
}  # fmt: skip


def main() -> None:
    BAD.mkdir(exist_ok=True)
    rows = ["file\twhat is wrong\tthe error has"]
    for name, (data, reason, words) in FILES.items():
        (BAD / name).write_bytes(data)
        rows.append(f"{name}\t{reason}\t{words}")
    (BAD / "reasons.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
