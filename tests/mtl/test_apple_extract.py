"""Our tables against Apple's own metadata, as checked in; and its extraction anew, where asked."""

import pytest

from tests.mtl import apple_extract, macho
from tinyrvllm.mtl import api
from tinyrvllm.soft.objc_double import signatures

APPLE = {(row["owner"], row["selector"]): row for row in apple_extract.read(apple_extract.METHODS)}
# Methods of the root class, which the SDK's dumps leave out (libobjc's headers have them), and
# two that MTLFunctionConstantValues inherits from it.
ROOT = {("NSObject", s) for _, s in apple_extract.wanted()} | {
    ("MTLFunctionConstantValues", "alloc"),
    ("MTLFunctionConstantValues", "init"),
}


def rows() -> list[tuple[tuple[str, str], str, str, str, str]]:
    """(key, level, returns, arguments, introduced) of the bridge's table and of the double's."""
    found = []
    for key, method in api.table().items():
        level = "class" if method.is_class_method else "instance"
        since = ".".join(map(str, method.introduced))
        found.append((key, level, method.returns, " ".join(method.arguments), since))
    for selector, signature in signatures.signatures().items():
        for owner, since in signature.owners.items():
            arguments = " ".join(signature.arguments)
            version = ".".join(map(str, since))
            found.append(((owner, selector), "", signature.returns, arguments, version))
    return found


def test_types_versions_and_levels_are_the_sdk_s() -> None:
    compared = 0
    for key, level, returns, arguments, since in rows():
        if key in ROOT:
            continue
        apple = APPLE[key]
        assert (returns, arguments) == (apple["returns"], apple["arguments"]), key
        assert level in ("", apple["level"]), key
        assert apple["introduced"] in ("", since), key  # a property's version is not dumped
        compared += 1
    assert compared >= 250


def test_types_are_what_clang_emitted() -> None:
    compared = 0
    for key, _, returns, arguments, _ in rows():
        if encoding := APPLE.get(key, {}).get("clang"):
            assert api.letters(encoding) == f"{returns}@:{arguments.replace(' ', '')}", key
            compared += 1
    assert compared >= 80


@pytest.mark.parametrize(
    ("letter", "kind", "size"),
    [("B", "primitive", 1), ("Q", "primitive", 8), ("q", "primitive", 8), ("d", "primitive", 8),
     ("@", "pointer", 8), ("#", "pointer", 8), (":", "pointer", 8), ("*", "pointer", 8),
     ("^v", "pointer", 8), ("^@", "pointer", 8), ("^Q", "pointer", 8), ("@?", "pointer", 8),
     ("{QQ}", "struct", 16), ("{QQQ}", "struct", 24), ("{qqq}", "struct", 24)],
)  # fmt: skip
def test_a_letter_is_the_c_type_it_stands_for(letter: str, kind: str, size: int) -> None:
    """What we send is built from C types: with the row's letters right, so is the call."""
    for types, ffi in ((api.C_TYPES, api.ffi), (signatures.C_TYPES, signatures.ffi)):
        found = ffi.typeof(types[letter])
        assert (found.kind, ffi.sizeof(found)) == (kind, size)
        if kind == "struct":
            signed = "int64_t" if letter[1] == "q" else "uint64_t"
            assert {field.type.cname for _, field in found.fields} == {signed}


def test_every_letter_is_checked() -> None:
    used = {
        letter for _, _, returns, arguments, _ in rows() for letter in [returns, *arguments.split()]
    }
    assert used <= {*"vBQqd@#:*", "^v", "^@", "^Q", "@?", "{Q}", "{QQ}", "{QQQ}", "{qqq}"}


def test_constants_are_apple_s() -> None:
    apple = {row["name"]: int(row["value"]) for row in apple_extract.read(apple_extract.CONSTANTS)}
    ours = {name: value for name, value in vars(api).items() if name.startswith("MTL")}
    for kind, value in ours.pop("MTLDataTypes").items():
        sizes = {"8": "Char", "16": "Short", "32": "Int", "64": "Long"}
        signed = {f"int{bits}": name for bits, name in sizes.items()}
        names = signed | {f"u{of}": f"U{name}" for of, name in signed.items()}
        names |= {"bool": "Bool", "float16": "Half", "float32": "Float"}
        assert value == apple[f"MTLDataType{names[kind]}"], kind
    for family, value in ours.pop("MTLGPUFamilies").items():
        assert value == apple[f"MTLGPUFamily{family}"], family
    assert len(ours) >= 10
    for name, value in ours.items():
        assert value == apple[name], name


def test_a_wrong_row_would_be_seen() -> None:
    key = ("MTLComputeCommandEncoder", "setBuffer:offset:atIndex:")
    assert APPLE[key]["arguments"] == "@ Q Q"
    assert APPLE[key]["clang"] == "v40@0:8@16Q24Q32"


def test_what_is_no_program_is_refused() -> None:
    with pytest.raises(ValueError, match="expected an arm64 Mach-O file"):
        macho.Image(b"\x7fELF" + bytes(64))


@pytest.mark.long
def test_extracted_anew_it_is_the_same(capsys: pytest.CaptureFixture) -> None:
    assert apple_extract.main() == 0, capsys.readouterr().out
