"""What Apple says of the methods and constants we send: extracted anew, or read as checked in.

    python -m tests.mtl.apple_extract           downloads PyObjC and compares with what is checked in
    python -m tests.mtl.apple_extract --write   replaces apple_methods.tsv and apple_constants.tsv

PyObjC ships two things of Apple's making. Its source archives hold a dump of the SDK's headers
(`metadata/raw/*.fwinfo`: each method's types and the version that introduced it, each constant's
value), and its Metal wheel is a program whose protocols Apple's clang has described (macho.py).
"""

import csv
import json
import re
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from tqdm import tqdm

from tests.mtl import macho
from tinyrvllm import pypi
from tinyrvllm.mtl import api
from tinyrvllm.soft.objc_double import signatures

VERSION = "12.2.2"  # its dumps are of the macOS 26.5 SDK
METHODS = Path(__file__).with_name("apple_methods.tsv")
CONSTANTS = Path(__file__).with_name("apple_constants.tsv")
COLUMNS = ("owner", "selector", "level", "returns", "arguments", "introduced", "clang")
FAMILIES = ("ResourceStorageMode", "DispatchType", "CommandBufferStatus", "BarrierScope",
            "ResourceUsage", "MathMode", "MathFloatingPointFunctions", "IndirectCommandType",
            "PipelineOption", "GPUFamily", "DataType", "LanguageVersion")  # fmt: skip


def fetch(folder: Path) -> tuple[dict, dict, bytes]:
    """(SDK dump of Metal, of Foundation, Mach-O file), from PyPI."""

    def download(project: str, ending: str) -> Path:
        filename = f"pyobjc_framework_{project}-{VERSION}{ending}"
        bar = tqdm(desc=filename, unit="B", unit_scale=True, leave=False)
        pypi.download(pypi.find(f"pyobjc-framework-{project}", filename), folder / filename, bar)
        return folder / filename

    def dump(project: str, raw: str) -> dict:
        with tarfile.open(download(project, ".tar.gz")) as archive:
            name = f"pyobjc_framework_{project}-{VERSION}/metadata/{raw}/arm64-26.5.fwinfo"
            text = archive.extractfile(name).read()  # type: ignore[union-attr]
        return json.loads(text[text.index(b"{") :])["definitions"]  # after // comments

    wheel = download("metal", "-cp312-cp312-macosx_10_13_universal2.whl")
    with zipfile.ZipFile(wheel) as archive:
        program = archive.read("Metal/_Metal.cpython-312-darwin.so")
    return dump("metal", "raw"), dump("cocoa", "raw.Foundation"), program


def letters(encoding: str) -> str:
    """A type of the dump in the letters of our tables: "{MTLSize=QQQ}" is {QQQ}, BOOL is B."""
    plain = re.sub(r"\{[^={}]*=", "{", re.sub(r"[rnNoORVA]", "", encoding))
    # A generic's ObjectType is "?" there; const char * is "*" in a method.
    return {"Z": "B", "c": "B", "^c": "*", "?": "@", "^?": "^@"}.get(plain, plain)


def sdk_methods(definitions: dict) -> dict[tuple[str, str], dict[str, str]]:
    """(owner, selector) -> a row of apple_methods.tsv, without clang's column."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for kind in ("formal_protocols", "classes"):
        for owner, what in definitions.get(kind, {}).items():
            listed = [*what.get("methods", ()), *_accessors(what.get("properties", ()))]
            for extra in what.get("categories", ()):
                listed += [*extra.get("methods", ()), *_accessors(extra.get("properties", ()))]
            for method in listed:
                found[owner, method["selector"]] = {
                    "owner": owner,
                    "selector": method["selector"],
                    "level": "class" if method.get("class_method") else "instance",
                    "returns": letters(method["retval"]["typestr"]),
                    "arguments": " ".join(letters(a["typestr"]) for a in method["args"]),
                    "introduced": method.get("introduced") or "",
                }
    return found


def _accessors(properties: list[dict]) -> list[dict]:
    """The methods that a declared property stands for; the dump does not say since when."""
    methods: list[dict] = []
    for item in properties:
        name, value = item["name"], {"typestr": item["typestr"]}
        setter = f"set{name[0].upper()}{name[1:]}:"
        level = {"class_method": "class" in item["attributes"]}
        getter = item.get("getter") or name
        methods.append({"selector": getter, "args": [], "retval": value} | level)
        methods.append({"selector": setter, "args": [value], "retval": {"typestr": "v"}} | level)
    return methods


def wanted() -> set[tuple[str, str]]:
    """Every method of our two tables: the bridge's and the double's."""
    ours = set(api.table())
    for selector, signature in signatures.signatures().items():
        ours |= {(owner, selector) for owner in signature.owners}
    return ours


def extract(metal: dict, foundation: dict, program: bytes) -> tuple[list[dict], list[dict]]:
    """The rows of both files."""
    sdk = sdk_methods(foundation) | sdk_methods(metal)
    clang = {(o, s): types for o, _, s, types in macho.protocol_methods(program)}
    methods = [sdk[key] | {"clang": clang.get(key, "")} for key in sorted(wanted()) if key in sdk]
    names = re.compile(f"MTL({'|'.join(FAMILIES)})[A-Z0-9]")
    constants = [
        {"name": name, "value": str(value["value"])}
        for name, value in sorted(metal["enum"].items())
        if names.match(name)
    ]
    return methods, constants


def read(path: Path) -> list[dict[str, str]]:
    """The rows of a checked-in file."""
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines(), delimiter="\t"))


def write(path: Path, rows: list[dict]) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter="\t", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="tinyrvllm-") as folder:
        methods, constants = extract(*fetch(Path(folder)))
    if "--write" in sys.argv[1:]:
        write(METHODS, methods)
        write(CONSTANTS, constants)
    missing = wanted() - {(row["owner"], row["selector"]) for row in methods}
    same = methods == read(METHODS) and constants == read(CONSTANTS)
    print(f"{len(methods)} methods, of {sum(1 for row in methods if row['clang'])} clang's own")
    print(f"{len(constants)} constants; as checked in: {'yes' if same else 'NO'}")
    if missing:
        print("not in the dumps:", ", ".join(f"{o} {s}" for o, s in sorted(missing)))
    return 0 if same else 1


if __name__ == "__main__":
    raise SystemExit(main())
