"""The table against what we did not write: Apple's clang, and the double's own extract of it."""

import csv
import importlib
import pkgutil
from pathlib import Path

import pytest

from tinyrvllm import mtl
from tinyrvllm.mtl import MetalError, api
from tinyrvllm.soft.objc_double import signatures


def clang_encodings() -> dict[tuple[str, str], str]:
    """(owner, selector) -> what Apple's clang emitted for the method in pyobjc's wheel."""
    path = Path(signatures.__file__).with_name("methods.tsv")
    rows = csv.DictReader(path.read_text(encoding="utf-8").splitlines(), delimiter="\t")
    return {(row["owner"], row["selector"]): row["clang"] for row in rows if row["clang"]}


def test_rows_agree_with_clang() -> None:
    compared = 0
    for key, encoding in clang_encodings().items():
        if key in api.table():
            method = api.table()[key]
            assert api.parse_encoding(encoding) == (method.returns, method.arguments), key
            compared += 1
    assert compared >= 20  # most owners are protocols whose types clang does not publish


def test_rows_agree_with_the_double() -> None:
    known = signatures.signatures()
    for method in api.table().values():
        signature = known[method.selector]
        assert (method.returns, method.arguments) == (signature.returns, signature.arguments)
        assert method.introduced == signature.owners[method.owner]


def test_every_row_is_used_and_only_rows_are() -> None:
    for module in pkgutil.iter_modules(mtl.__path__):  # importing a module declares its rows
        importlib.import_module(f"tinyrvllm.mtl.{module.name}")
    assert set(api.table().values()) == api.declared


def test_a_selector_has_one_type_whoever_owns_it() -> None:
    types: dict[str, tuple] = {}
    for method in api.table().values():
        found = (method.returns, method.arguments)
        assert types.setdefault(method.selector, found) == found, method.selector


@pytest.mark.parametrize(
    ("message", "nearest"),
    [
        ("MTLBuffer content", "MTLBuffer contents"),
        ("MTLCommandBuffer commit:", "MTLCommandBuffer commit"),
        ("MTLComputeCommandEncoder setBuffer:atIndex:offset:", "setBuffer:offset:atIndex:"),
        ("MTLCommandBuffer endEncoding", "MTLCommandEncoder endEncoding"),
    ],
)
def test_unknown_message_names_the_nearest(message: str, nearest: str) -> None:
    with pytest.raises(MetalError, match="nearest: ") as caught:
        api.declare(wrong=message)
    assert nearest in str(caught.value)


def test_c_signatures() -> None:
    method = api.table()["MTLComputeCommandEncoder", "setBytes:length:atIndex:"]
    assert method.c_signature == "void(*)(id, SEL, void *, uint64_t, uint64_t)"
    for method in api.table().values():
        assert api.ffi.typeof(method.c_signature).kind == "function"


def test_parse_encoding() -> None:
    plain = "v48@0:8r^@16r^Q24{_NSRange=QQ}32"
    assert api.parse_encoding(plain) == ("v", ("^@", "^Q", "{QQ}"))
    assert api.parse_encoding("v64@0:8{?=QQQ}16{?=QQQ}40") == ("v", ("{QQQ}", "{QQQ}"))
    assert api.parse_encoding("Vv16@0:8") == ("v", ())
    assert api.parse_encoding("c24@0:8@?16") == ("B", ("@?",))
