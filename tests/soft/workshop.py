"""Where `mutate.py` has its mutants judged: copies of the package, and what is known of the tests.

First every test file of the part runs once, alone, and `coverage` notes which tests execute which
line. A mutant gets the tests that execute its line, file by file, the quickest first, up to the
first failure; then the files that execute it when they are imported or in shared fixtures. For the C++
of the device nothing notes lines, so its mutants get all files, those that catch most first.
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
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.soft.mutants import Mutant

ROOT = Path(__file__).parents[2]
CPU_SECONDS = 200  # of one run of tests; a turned comparison may loop for ever
WALL_SECONDS = 1200  # or wait for ever
PRELOADED = [
    "asyncio", "cffi.cparser", "gguf", "http.server", "hypothesis", "jinja2.sandbox", "numpy", "numpy.random",
    "pytest", "threadpoolctl", "tokenizers", "tqdm", "unittest.mock",
]  # fmt: skip
REFUSED = 77  # exit status: it does not compile
# What catches most of a header's mutants; the other files follow by their duration.
FIRST = {
    "simd_ops.h": ("soft/test_stdlib_simd.py",), "quad_ops.h": ("soft/test_stdlib_simd.py",),
    "integer.h": ("soft/test_stdlib_integer.py",), "pack.h": ("soft/test_stdlib_vectors.py",),
    "construct.h": ("soft/test_stdlib_vectors.py",), "relational.h": ("soft/test_stdlib_vectors.py",),
    "engine.cpp": ("soft/test_cpu_workers.py",),
    "runtime.h": ("soft/test_cpu_language.py", "soft/test_stdlib_simd.py"),
    "entry.h": ("soft/test_cpu_language.py", "soft/test_cpu_kernels.py"),
}  # fmt: skip
# Tests that change the bridge themselves, or start processes that find the package elsewhere.
UNWANTED = "not changed_bridge and not killed and not two_processes"


class Workshop:
    """Copies of the package for the mutants of one part, and what is known of its tests.

    `tests`: globs below tests; `compiles_alike`: no mutant changes what kernels are compiled to.
    """

    def __init__(self, tests: Sequence[str], compiles_alike: bool, jobs: int) -> None:
        self.compiles_alike, self.jobs = compiles_alike, jobs
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
        self.files = [f"tests/{p.relative_to(ROOT / 'tests').as_posix()}" for g in globs for p in g]
        self.tests_of: dict[tuple[str, int], set[str]] = defaultdict(set)  # tests, or whole files
        self.seconds: Counter[str] = Counter()  # of a test, and of a file

    def measure(self) -> None:
        """Runs each test file once and notes its lines. Raises RuntimeError where one fails."""
        with ThreadPoolExecutor(self.jobs) as pool:
            for file, found in zip(self.files, pool.map(self._measured, self.files), strict=True):
                for name, lines in found["lines"].items():
                    for line, contexts in lines.items():
                        self.tests_of[name, int(line)].update(c or file for c in contexts)
                for test, seconds in found["seconds"].items():
                    self.seconds[test] += seconds
                    self.seconds[file] += seconds

    def _measured(self, file: str) -> Any:
        place = self.places.get()
        report = place / "measured.json"
        if self._run(place, _measure, [file], report) not in (0, 5):  # 5: no test was asked for
            text = (place / "output").read_text()[-3000:]
            raise RuntimeError(f"{file} fails without any change:\n{text}")
        self._tidy(place)
        return json.loads(report.read_text())

    def judge(self, mutant: Mutant) -> str:
        """ "caught", "refused" (it does not compile) or "survived"."""
        place = self.places.get()
        changed = place / "tinyrvllm" / mutant.file
        original = changed.read_text(encoding="utf-8")
        changed.write_text(mutant.text, encoding="utf-8")
        try:
            for tests in self._stages(mutant):
                status = self._run(place, _judge, tests, not mutant.file.endswith(".py"))
                if status not in (0, 5):
                    return "refused" if status == REFUSED else "caught"
            return "survived"
        finally:
            changed.write_text(original, encoding="utf-8")
            self._tidy(place)

    def _tidy(self, place: Path) -> None:
        for made in (place / "tmp", place / "cache"):
            shutil.rmtree(made, ignore_errors=True)
        self.places.put(place)

    def _stages(self, mutant: Mutant) -> list[list[str]]:
        if not mutant.file.endswith(".py"):
            first = [f"tests/{name}" for name in FIRST.get(Path(mutant.file).name, ())]
            return [first + [f for f in self._quickest(self.files) if f not in first]]
        found = self.tests_of[mutant.file, mutant.line]
        tests: dict[str, list[str]] = defaultdict(list)  # by file: others need not be imported
        for test in self._quickest({t for t in found if "::" in t}):
            tests[test.split("::")[0]].append(test)
        stages = sorted(tests.values(), key=lambda some: sum(self.seconds[t] for t in some))
        return stages + [[file] for file in self._quickest({t for t in found if "::" not in t})]

    def _quickest(self, names: Sequence[str] | set[str]) -> list[str]:
        return sorted(names, key=lambda name: (self.seconds[name], name))

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
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
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
