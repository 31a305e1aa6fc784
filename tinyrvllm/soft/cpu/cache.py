"""Compiled things on disk, by key: two processes may write at once, a damaged entry is rebuilt."""

import functools
import hashlib
import os
import sys
import tempfile
import uuid
import warnings
from pathlib import Path


def directory() -> Path:
    """$TINYRVLLM_CACHE/soft, or the user's cache directory."""
    if os.environ.get("TINYRVLLM_CACHE"):
        root = Path(os.environ["TINYRVLLM_CACHE"])
    elif sys.platform == "win32":
        root = Path(os.environ.get("LOCALAPPDATA", str(Path.home()))) / "tinyrvllm"
    elif sys.platform == "darwin":
        root = Path.home() / "Library/Caches/tinyrvllm"
    else:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tinyrvllm"
    return root / "soft"


def key(*parts: object) -> str:
    """A name for what is made from `parts` and nothing else."""
    digest = hashlib.sha256()
    for part in parts:
        text = repr(part).encode()
        digest.update(f"{len(text)}:".encode() + text)
    return digest.hexdigest()[:32]


def get(name: str) -> Path | None:
    """The whole, undamaged entry, or None. Each entry has a file with its SHA-256 beside it."""
    path = directory() / name
    try:
        expected = _sum(path).read_text()
        found = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None
    return path if found == expected else None


def put(name: str, content: bytes) -> Path:
    """Stores `content`; a reader sees the old entry or the new one, never a part.

    Where the directory takes nothing, full or not ours, a folder of this process does, with a
    warning. Raises OSError where that one does not either.
    """
    try:
        return _store(directory() / name, content)
    except OSError as error:
        warnings.warn(
            f"compiled kernels cannot be kept, and are compiled anew next time: {error}. Free some "
            "space, or set TINYRVLLM_CACHE to a folder that can be written",
            stacklevel=2,
        )
        return _store(Path(_own_folder().name) / name, content)


def _store(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    _replace(path, content)
    _replace(_sum(path), hashlib.sha256(content).hexdigest().encode())
    return path


@functools.cache
def _own_folder() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(prefix="tinyrvllm-", ignore_cleanup_errors=True)


def _sum(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except PermissionError:
        # Windows: another process may have the same entry loaded.
        if not (path.exists() and path.read_bytes() == content):
            raise
    finally:
        temporary.unlink(missing_ok=True)
