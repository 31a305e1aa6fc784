"""Where `mutate.py` has its mutants judged: copies of the package, and what is known of the tests.

The test files of a part come in a good order. When a mutant first comes to one of them, it runs
once without a change, and `coverage` notes which tests execute which line. A mutant gets the tests
that execute its line, the quickest first, up to the first failure; the whole file where the line
runs when it is imported or in shared fixtures. For the C++ of the device nothing notes lines.
"""

import compileall
import json
import multiprocessing
import os
import py_compile
import queue
import resource
import shutil
import signal
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.soft.mutants import Mutant

ROOT = Path(__file__).parents[2]
CPU_SECONDS = 20  # of one run of tests; a turned comparison may loop for ever,
CPP_SECONDS = 8  # also in kernels, whose tests need 3 at most
WALL_SECONDS = 1200  # or wait for ever
PRELOADED = [
    "asyncio", "cffi.cparser", "gguf", "http.server", "hypothesis", "jinja2.sandbox", "numpy", "numpy.random",
    "pytest", "threadpoolctl", "tokenizers", "tqdm", "unittest.mock",
]  # fmt: skip
NO_TESTS, REFUSED = 5, 77  # exit statuses: pytest's where it was asked for none; does not compile
# What catches most of a header's mutants.
FIRST = {
    "simd_ops.h": ("test_stdlib_simd.py",), "quad_ops.h": ("test_stdlib_simd.py",),
    "integer.h": ("test_stdlib_integer.py",), "pack.h": ("test_stdlib_vectors.py",),
    "construct.h": ("test_stdlib_vectors.py",), "relational.h": ("test_stdlib_vectors.py",),
    "engine.cpp": ("test_cpu_workers.py",),
    "runtime.h": ("test_cpu_language.py", "test_stdlib_simd.py"),
    "entry.h": ("test_cpu_builtins.py", "test_cpu_language.py"),
}  # fmt: skip
# Tests that change the bridge themselves, or start processes that find the package elsewhere.
UNWANTED = "not changed_bridge and not killed and not two_processes"


class Workshop:
    """Copies of the package for the mutants of one part, and what is known of its tests.

    `tests`: globs below tests; `compiles_alike`: no mutant changes what kernels are compiled to.
    """

    def __init__(self, tests: Sequence[str], compiles_alike: bool, jobs: int) -> None:
        self.compiles_alike = compiles_alike
        self.folder = tempfile.TemporaryDirectory(prefix="mutants-")
        self.places: queue.SimpleQueue[Path] = queue.SimpleQueue()
        (Path(self.folder.name) / "compiled").mkdir()
        for number in range(jobs):
            place = Path(self.folder.name) / str(number)
            for name in ("tinyrvllm", "tests"):
                shutil.copytree(
                    ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__")
                )
                # by hash: two mutants of one second and one size are two files
                compileall.compile_dir(
                    place / name,
                    quiet=2,
                    invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH,
                )
            shutil.copy(ROOT / "pyproject.toml", place)
            self.places.put(place)
        globs = [sorted((ROOT / "tests").glob(pattern)) for pattern in tests]
        self.files = list(dict.fromkeys(path for found in globs for path in found))
        self._known: dict[Path, dict[str, Any]] = {}
        self._measuring = threading.Lock()

    def judge(self, mutant: Mutant) -> str:
        """ "caught", "refused" (it does not compile) or "survived"."""
        first = FIRST.get(Path(mutant.file).name, ())
        for file in sorted(self.files, key=lambda file: file.name not in first):
            tests = self._tests(file, mutant)
            status = self._try(mutant, tests) if tests else 0
            if status not in (0, NO_TESTS):
                return "refused" if status == REFUSED else "caught"
        return "survived"

    def _try(self, mutant: Mutant, tests: list[str]) -> int:
        place = self.places.get()
        changed = place / "tinyrvllm" / mutant.file
        original = changed.read_text(encoding="utf-8")
        changed.write_text(mutant.text, encoding="utf-8")
        try:
            return self._run(place, _judge, tests, not mutant.file.endswith(".py"))
        finally:
            changed.write_text(original, encoding="utf-8")
            self._tidy(place)

    def _tests(self, file: Path, mutant: Mutant) -> list[str]:
        """The tests of a file that execute the changed line, or the file, if all of them may."""
        whole = [str(file.relative_to(ROOT))]
        if not mutant.file.endswith(".py"):
            return whole
        with self._measuring:
            if file not in self._known:
                self._known[file] = self._measured(file)
        lines, seconds = self._known[file]["lines"], self._known[file]["seconds"]
        found = lines.get(mutant.file, {}).get(str(mutant.line), [])
        return whole if "" in found else sorted(found, key=lambda test: seconds[test])

    def _measured(self, file: Path) -> dict[str, Any]:
        """Runs a test file and notes its lines and times. Raises RuntimeError where it fails."""
        place = self.places.get()
        report = place / "measured.json"
        if self._run(place, _measure, [str(file.relative_to(ROOT))], report) not in (0, NO_TESTS):
            text = (place / "output").read_text()[-3000:]
            raise RuntimeError(f"{file} fails without any change:\n{text}")
        self._tidy(place)
        return json.loads(report.read_text())

    def _tidy(self, place: Path) -> None:
        for made in (place / "tmp", place / "cache"):
            shutil.rmtree(made, ignore_errors=True)
        self.places.put(place)

    def _run(self, place: Path, *work: object) -> int:
        """Does `work`, a function and its arguments, in a fresh process; its exit status."""
        shared = Path(self.folder.name)
        cache = shared / "cache" if self.compiles_alike else place / "cache"
        fork = multiprocessing.get_context("forkserver")
        fork.set_forkserver_preload(PRELOADED)
        process = fork.Process(target=_in_child, args=(place, cache, shared / "compiled", *work))
        process.start()
        process.join(WALL_SECONDS)
        if process.exitcode is None:
            os.killpg(process.pid or 0, signal.SIGKILL)
            process.join()
        return process.exitcode or 0


def _in_child(
    place: Path, cache: Path, compiled: Path, work: Callable[..., int], *arguments: object
) -> None:
    os.setsid()
    with open(place / "output", "wb") as output:
        for stream in (1, 2):
            os.dup2(output.fileno(), stream)
    os.chdir(place)
    (place / "tmp").mkdir(exist_ok=True)
    tempfile.tempdir = None
    sys.dont_write_bytecode = False
    os.environ.update(
        PYTHONPATH=str(place),
        TINYRVLLM_CACHE=str(cache),
        TMPDIR=str(place / "tmp"),
        OPENBLAS_NUM_THREADS="1",
        PYTEST_DISABLE_PLUGIN_AUTOLOAD="1",
    )
    for name in [m for m in sys.modules if m.split(".")[0] in ("tests", "tinyrvllm")]:
        del sys.modules[name]
    sys.path.insert(0, str(place))
    sys.exit(work(place, compiled, *arguments))


def _pytest(tests: list[str], *plugins: object) -> int:
    import pytest

    options = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not long", "-k", UNWANTED]
    return int(pytest.main([*options, *tests], plugins=list(plugins)))


def _judge(place: Path, compiled: Path, tests: list[str], cpp_changed: bool) -> int:
    from tests.soft.compiled_once import install
    from tinyrvllm.soft.cpu import build, native
    from tinyrvllm.soft.msl import MSLError

    seconds = CPP_SECONDS if cpp_changed else CPU_SECONDS
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    install(place, compiled, learning=False)
    try:
        if cpp_changed:
            build._header(build.LEAD)
            native.engine(False)
    except MSLError:
        return REFUSED
    return _pytest(tests)


def _measure(place: Path, compiled: Path, tests: list[str], report: Path) -> int:
    import coverage

    tool = coverage.Coverage(data_file=None, include=[f"{place}/tinyrvllm/*"])
    plugin = _Contexts(tool, Path(os.environ["TINYRVLLM_CACHE"]))
    tool.start()
    from tests.soft.compiled_once import install

    install(place, compiled, learning=True)
    status = _pytest(tests, plugin)
    tool.stop()
    data, package = tool.get_data(), place / "tinyrvllm"
    lines = {
        Path(file).relative_to(package).as_posix(): data.contexts_by_lineno(file)
        for file in data.measured_files()
    }
    report.write_text(json.dumps({"lines": lines, "seconds": plugin.seconds}))
    return status


class _Contexts:
    """Tells coverage which test runs; "" where it is more than one. What a test made, none finds."""

    def __init__(self, tool: Any, cache: Path) -> None:
        self.tool, self.cache, self.seconds = tool, cache, Counter[str]()

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[report.nodeid] += report.duration

    def pytest_runtest_protocol(self, item: Any) -> None:
        self.tool.switch_context(item.nodeid)
        for translated in self.cache.glob("soft/*.unit"):
            translated.unlink()
        for name, module in list(sys.modules.items()):
            for value in list(vars(module).values()) if name.startswith("tests.") else ():
                if hasattr(value, "cache_clear"):
                    value.cache_clear()

    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> None:
        if fixturedef.scope != "function":
            self.tool.switch_context("")

    def pytest_runtest_call(self, item: Any) -> None:
        self.tool.switch_context(item.nodeid)
