"""The table against what we did not write: Apple's clang, and the double's own extract of it."""

import ast
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
            assert api.letters(encoding) == f"{method.returns}@:{''.join(method.arguments)}", key
            compared += 1
    assert compared >= 20  # most owners are protocols whose types clang does not publish


def test_rows_agree_with_the_double() -> None:
    known = signatures.signatures()
    for method in api.table().values():
        signature = known[method.selector]
        assert (method.returns, method.arguments) == (signature.returns, signature.arguments)
        assert method.introduced == signature.owners[method.owner]


def test_a_module_declares_what_it_sends_and_every_row_is_sent() -> None:
    sent = set()
    for module in pkgutil.walk_packages(mtl.__path__, "tinyrvllm.mtl."):
        path = importlib.import_module(module.name).__file__ or ""
        names, methods = set(), set()
        for node in ast.walk(ast.parse(Path(path).read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "declare":
                methods |= set(api.declare(*map(ast.literal_eval, node.args)))
            elif isinstance(node, ast.Attribute) and ast.unparse(node.value).endswith("send"):
                names.add(node.attr)
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "self._add":
                names.add(ast.literal_eval(node.args[0]))  # in replay/recording.py
        declared = {method.selector.replace(":", "_") for method in methods}
        every_object = {"new", "retain", "release", "native"}  # objc.py declares what it has
        assert names - every_object == declared - every_object, module.name
        sent |= methods
    assert set(api.table().values()) == sent


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
        api.declare(message)
    assert nearest in str(caught.value)


def test_c_types() -> None:
    method = api.table()["MTLComputeCommandEncoder", "setBytes:length:atIndex:"]
    written = "void(*)(id, SEL, void *, uint64_t, uint64_t)"
    assert api.c_type(method.returns, method.arguments) == written
    for method in api.table().values():
        assert method.selector.count(":") == len(method.arguments)
        assert api.ffi.typeof(api.c_type(method.returns, method.arguments)).kind == "function"


def test_letters_of_an_encoding() -> None:
    assert api.letters("v48@0:8r^@16r^Q24{_NSRange=QQ}32") == "v@:^@^Q{QQ}"
    assert api.letters("v64@0:8{?=QQQ}16{?=QQQ}40") == "v@:{QQQ}{QQQ}"
    assert api.letters("{NSOperatingSystemVersion=qqq}16@0:8") == "{qqq}@:"
    assert api.letters("Vv16@0:8") == "v@:"
    assert api.letters("c24@0:8@?16") == "B@:@?"


def test_a_message_is_bound_once(device: mtl.Device) -> None:
    assert device.objc.send.contents is device.objc.send.contents
