"""Compiled things on disk, by key: two processes may write at once, a damaged entry is rebuilt."""

import hashlib
import os
import sys
import tempfile
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
    """Stores `content`; a reader sees the old entry or the new one, never a part."""
    path = directory() / name
    path.parent.mkdir(parents=True, exist_ok=True)
    _replace(path, content)
    _replace(_sum(path), hashlib.sha256(content).hexdigest().encode())
    return path


def _sum(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def _replace(path: Path, content: bytes) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    try:
        os.replace(temporary, path)
    except PermissionError:  # Windows: another process has the same entry loaded
        os.unlink(temporary)
        if path.read_bytes() != content:
            raise
