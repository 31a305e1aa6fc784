"""Which part of the house may import which: the arrows of docs/architecture.md, held."""

import ast
from pathlib import Path

import pytest

import tinyrvllm

ROOT = Path(tinyrvllm.__file__).parent
COMMON = {"tinyrvllm", "tinyrvllm.errors"}

# part -> the other parts that its modules may import (standard library and packages apart)
ALLOWED: dict[str, set[str]] = {
    "mtl": {"soft"},  # one line of mtl/objc.py, see below
    "kernels": {"mtl"},
    "model": set(),
    "runner": {"model", "kernels", "mtl"},
    "engine": {"runner", "model", "hub"},
    "server": {"engine", "model"},
    "soft": set(),
}


def imports(path: Path) -> set[str]:
    """Absolute names of the tinyrvllm modules that a file imports, wherever it does."""
    package = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            if path.name == "__init__.py":
                parts = parts[:-1] + [""]  # a package's dot is the package itself
            base = ".".join(parts[: len(parts) - node.level]) if node.level else ""
            module = ".".join(name for name in (base, node.module) if name)
            found |= {f"{module}.{alias.name}" for alias in node.names} | {module}
    return {name for name in found if name.split(".")[0] == "tinyrvllm"}


def part(module: str) -> str:
    """"tinyrvllm.mtl.api" -> "mtl"; a module of the top level is its own name."""
    return (module.split(".") + [""])[1]


def python_files(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("folder", ALLOWED)
def test_arrows_run_one_way(folder: str) -> None:
    files = python_files(folder)
    assert files, f"expected modules in tinyrvllm/{folder}"
    for path in files:
        for module in imports(path):
            other = part(module)
            if other not in ("", folder, "errors", "__version__"):
                assert other in ALLOWED[folder], f"{path.relative_to(ROOT)} imports {module}"


def test_soft_stands_alone() -> None:
    """Not even the shared exception: the double must not lean on what it checks."""
    for path in python_files("soft"):
        outside = {name for name in imports(path) if part(name) != "soft"} - {"tinyrvllm"}
        assert not outside, f"{path.relative_to(ROOT)} imports {outside}"


def test_soft_is_reached_from_one_line() -> None:
    """Only mtl/objc.py chooses a runtime; soft's own command lines apart."""
    found = [
        f"{path.relative_to(ROOT).as_posix()}: {line.strip()}"
        for path in sorted(ROOT.rglob("*.py"))
        if "soft" not in path.relative_to(ROOT).parts
        for line in path.read_text(encoding="utf-8").splitlines()
        if "import" in line and "tinyrvllm.soft" in line
    ]
    assert found == ["mtl/objc.py: from tinyrvllm.soft import objc_double"]


BRIDGE = "api.py", "objc.py", "buffer.py", "library.py", "command.py", "device.py"


def test_the_bridge_can_be_read_in_one_sitting() -> None:
    """About 700 lines: docstrings and comments count, empty lines do not."""
    lines = {
        path.relative_to(ROOT / "mtl").as_posix(): sum(
            bool(line.strip()) for line in path.read_text(encoding="utf-8").splitlines()
        )
        for path in python_files("mtl")
    }
    assert sum(lines[name] for name in BRIDGE) <= 730, lines
    assert sum(lines.values()) <= 1200, lines


def test_the_bridge_knows_nothing_of_what_is_on_top() -> None:
    for path in (ROOT / "mtl").glob("*.py"):
        assert not [name for name in imports(path) if "mtl.replay" in name], path.name


def test_batch_imports_nothing() -> None:
    batch = ROOT / "runner" / "batch.py"
    assert imports(batch) == set()


def test_engine_never_sees_a_device() -> None:
    for path in python_files("engine"):
        assert not {part(name) for name in imports(path)} & {"mtl", "kernels", "soft"}


def test_nothing_is_larger_than_a_sitting() -> None:
    """Files stay under 300 lines, so that one can be read without scrolling back."""
    long = {
        str(path.relative_to(ROOT)): count
        for path in sorted(ROOT.rglob("*.py"))
        if (count := len(path.read_text(encoding="utf-8").splitlines())) > 300
    }
    assert long == {}
