"""The native side as cffi sees it: structures of runtime.h, the engine, kernels' libraries."""

import functools
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cffi

from tinyrvllm.soft.cpu import cache, compiler

SUFFIX = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")

ffi = cffi.FFI()
ffi.cdef("""
typedef struct { uint32_t x, y, z; } U3;
struct Followed;
typedef struct {
    uintptr_t entry, entry_rest;
    uintptr_t buffer[31];
    uint64_t length[31];
    uint32_t tg_offset[31], tg_length[31];
    U3 grid_threads, groups, group;
    uint32_t level, order;
    void *watch;
    struct Followed *followed;
} Dispatch;
typedef struct { uint32_t step, kind, count; double value[4]; } Note;
typedef struct Followed { U3 group; uint32_t index, most, count; Note *notes; } Followed;
uint32_t msl_pool_size(void);
uint32_t msl_dispatch_size(void);
void msl_pool_init(void *pool);
void msl_run(void *pool, Dispatch **list, uint32_t count, uint32_t workers, void *arena);
void msl_worker(void *pool, void *arena);
void msl_quit(void *pool);
void msl_lead(void);
void msl_rest(void);
uint32_t msl_static_bytes(void);
""")


@dataclass(frozen=True, slots=True)
class LoadedKernel:
    library: object
    lead: int  # address of the code for lane 0, or for all lanes
    rest: int
    static_bytes: int


def load_kernel(path: Path, apart: bool) -> LoadedKernel:
    """`apart`: the other lanes have code of their own."""
    library: Any = ffi.dlopen(str(path))
    lead = int(ffi.cast("uintptr_t", ffi.addressof(library, "msl_lead")))
    rest = int(ffi.cast("uintptr_t", ffi.addressof(library, "msl_rest"))) if apart else lead
    return LoadedKernel(library, lead, rest, library.msl_static_bytes())


@functools.cache
def engine(check: bool) -> Any:
    """The library of engine.cpp, compiled on first use. It stays loaded: workers live in it."""
    name = cache.key("engine", check, compiler.identity()) + SUFFIX
    path = cache.get(name)
    if path is None:
        with tempfile.TemporaryDirectory(prefix="tinyrvllm-") as folder:
            output, library = Path(folder) / "engine.o", Path(folder) / "engine.so"
            source = compiler.HERE / "engine.cpp"
            compiler.find().compile(source, output, compiler.CHECK_FLAGS if check else ())
            compiler.find().link([output], library)
            path = cache.put(name, library.read_bytes())
    loaded: Any = ffi.dlopen(str(path))
    if loaded.msl_dispatch_size() != ffi.sizeof("Dispatch"):
        raise RuntimeError("runtime.h and native.py disagree about the size of a Dispatch")
    return loaded


@functools.cache
def check_object() -> Path:
    """The object file of the checking mode, which is part of every checked kernel's library."""
    name = cache.key("check", compiler.identity()) + ".o"
    path = cache.get(name)
    if path is None:
        with tempfile.TemporaryDirectory(prefix="tinyrvllm-") as folder:
            output = Path(folder) / "check.o"
            compiler.find().compile(compiler.HERE / "check.cpp", output, compiler.CHECK_FLAGS)
            path = cache.put(name, output.read_bytes())
    return path
