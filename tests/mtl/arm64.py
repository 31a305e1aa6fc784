"""The bridge as an arm64 program, run by qemu: python -m tests.mtl.arm64 (Debian or Ubuntu, x86-64).

Fetches an arm64 Python from the distribution and arm64 wheels from PyPI into a folder, compiles the
stand-in for libobjc for arm64, and runs test_apple.py there: structs of 24 bytes come back through
x8 with no _stret, BOOL is one byte, a double returns in d0. Needs qemu-user; installs nothing.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import ziglang

ROOT = Path(__file__).parents[2]
PACKAGES = "cffi", "numpy", "pytest"
LIBRARIES = [
    "libc6", "zlib1g", "libexpat1", "libffi8", "libgcc-s1", "libstdc++6", "libssl3", "libbz2-1.0",
    "liblzma5", "libuuid1", "libsqlite3-0",
]  # fmt: skip
PLATFORMS = [f"manylinux_2_{minor}_aarch64" for minor in (17, 24, 26, 27, 28)] + [
    "manylinux2014_aarch64"
]


def distribution_python() -> str:
    """ "3.11": the version that python3 of this distribution depends on."""
    shown = subprocess.run(
        ["apt-cache", "depends", "python3"], capture_output=True, text=True, check=True
    ).stdout
    names = (line.split()[-1] for line in shown.splitlines())
    return next(name for name in names if name.startswith("python3.")).removeprefix("python")


def fetch_python(version: str, folder: Path) -> Path:
    """An arm64 Python in folder/root, from the distribution's packages."""
    lists, debs, root = folder / "lists", folder / "debs", folder / "root"
    for path in (lists / "partial", debs, root):
        path.mkdir(parents=True, exist_ok=True)
    apt = [
        "apt-get", "-qq", "-oAPT::Architecture=arm64", "-oAPT::Architectures=arm64",
        f"-oDir::State::Lists={lists}", "-oDir::State::status=/dev/null", f"-oDir::Cache={folder}",
    ]  # fmt: skip
    own = [f"python{version}-minimal", f"libpython{version}-minimal", f"libpython{version}-stdlib"]
    subprocess.run([*apt, "update"], check=True)
    subprocess.run([*apt, "download", *own, *LIBRARIES], cwd=debs, check=True)
    for deb in debs.glob("*.deb"):
        subprocess.run(["dpkg", "-x", str(deb), str(root)], check=True)
    return root / f"usr/bin/python{version}"


def fetch_wheels(version: str, folder: Path) -> Path:
    """Our dependencies for arm64, unpacked."""
    wheels, site = folder / "wheels", folder / "site"
    tag = "cp" + version.replace(".", "")
    command = [sys.executable, "-m", "pip", "download", "-q", "--only-binary=:all:", "-d", str(wheels)]
    command += ["--python-version", version, "--implementation", "cp"]
    for abi in (tag, "abi3", "none"):
        command += ["--abi", abi]
    for platform in PLATFORMS:
        command += ["--platform", platform]
    subprocess.run([*command, *PACKAGES], check=True)
    for wheel in wheels.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
    return site


def compile_stand_in(folder: Path) -> Path:
    """fake_objc.c for arm64."""
    path = folder / "fake_objc.so"
    zig = Path(ziglang.__file__).with_name("zig")
    flags = [
        "-target", "aarch64-linux-gnu", "-shared", "-O1", "-fPIC", "-nostdlib", "-ffreestanding",
        "-fno-sanitize=all", "-fno-stack-protector",
    ]  # fmt: skip
    source = Path(__file__).with_name("fake_objc.c")
    subprocess.run([str(zig), "cc", *flags, str(source), "-o", str(path)], check=True)
    return path


def main() -> int:
    if not (qemu := shutil.which("qemu-aarch64")):
        print("expected qemu-aarch64, found none: apt-get install qemu-user", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="tinyrvllm-arm64-") as name:
        folder = Path(name)
        version = distribution_python()
        python = fetch_python(version, folder)
        paths = [str(ROOT), str(fetch_wheels(version, folder))]
        variables = {
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TINYRVLLM_FAKE_OBJC": str(compile_stand_in(folder)),
        }
        tests = [str(ROOT / "tests/mtl/test_apple.py")]
        return subprocess.run(
            [qemu, "-L", str(folder / "root"), str(python), "-m", "pytest", "-q",
             "--noconftest", "-p", "no:cacheprovider", *tests],
            env=os.environ | variables, cwd=ROOT, check=False,
        ).returncode  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
