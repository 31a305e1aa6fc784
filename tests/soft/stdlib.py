"""How the tests of metal_stdlib run expressions: many cases, few kernels, arrays in and out."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from tinyrvllm.soft.cpu import execute
from tinyrvllm.soft.cpu.library import SoftKernel, SoftLibrary, compile_library

HEADER = "#include <metal_stdlib>\nusing namespace metal;\n"
CASES_PER_KERNEL = 80  # one kernel is one compilation
SIGNIFICAND_BITS = {np.dtype(np.float32): 23, np.dtype(np.float16): 10}


@dataclass(frozen=True)
class Case:
    result: str  # Metal type of the result
    arguments: tuple[str, ...]  # Metal types of a, b, c
    code: str  # an expression, or statements that assign `r`


class Cases:
    """Named expressions of a, b, c (one element of an array each), and of `i` and `lane`.

    A case runs in the lanes whose bit in `mask` is set; the others leave their result alone.
    """

    def __init__(self, prelude: str = "") -> None:
        self.prelude = HEADER + prelude
        self.cases: dict[str, Case] = {}
        self._library: SoftLibrary | None = None

    def add(self, name: str, result: str, arguments: tuple[str, ...], code: str) -> None:
        self.cases[name] = Case(result, arguments, code)

    def source(self) -> str:
        names = list(self.cases)
        chunks = [names[k : k + CASES_PER_KERNEL] for k in range(0, len(names), CASES_PER_KERNEL)]
        return self.prelude + "".join(self._kernel(k, chunk) for k, chunk in enumerate(chunks))

    def _kernel(self, number: int, names: list[str]) -> str:
        cases = "".join(self._case(k, self.cases[name]) for k, name in enumerate(names))
        return (
            f"kernel void cases{number}(device const char *in0 [[buffer(0)]], "
            "device const char *in1 [[buffer(1)]], device const char *in2 [[buffer(2)]], "
            "device char *out [[buffer(3)]], constant uint &which [[buffer(4)]], "
            "constant uint &mask [[buffer(5)]], uint i [[thread_position_in_grid]], "
            "uint lane [[thread_index_in_simdgroup]]) {\n"
            f"  if (mask >> lane & 1) switch (which) {{\n{cases}  }}\n}}\n"
        )

    @staticmethod
    def _case(number: int, case: Case) -> str:
        loads = "".join(
            f"{t} {'abc'[k]} = ((device const {t} *)in{k})[i]; "
            for k, t in enumerate(case.arguments)
        )
        code = case.code if ";" in case.code else f"r = {case.code};"
        return (
            f"    case {number}: {{ {loads}{case.result} r; {code} "
            f"((device {case.result} *)out)[i] = r; break; }}\n"
        )

    def compile(self) -> "Cases":
        self._library = compile_library(self.source(), filename="cases.metal")
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(self._library.kernel, self._library.functions))
        return self

    def run(
        self,
        name: str,
        *arrays: np.ndarray,
        out: np.ndarray,
        threads: int,
        group: int = 32,
        mask: int = 0xFFFFFFFF,
    ) -> np.ndarray:
        """Runs one case in `threads` threads, in threadgroups of `group`; returns `out`, written."""
        position = list(self.cases).index(name)
        kernel = f"cases{position // CASES_PER_KERNEL}"
        words = np.array([position % CASES_PER_KERNEL, mask], np.uint32)
        bound = [arrays[k] if k < len(arrays) else words for k in range(3)]
        assert self._library is not None
        run_kernel(
            self._library, kernel, *bound, out, words[:1], words[1:], threads=threads, group=group
        )
        return out


def library(body: str) -> SoftLibrary:
    return compile_library(HEADER + body, filename="stdlib.metal")


def run_kernel(
    library: SoftLibrary, name: str, *arrays: np.ndarray, threads: int, group: int = 32
) -> None:
    """Array number i is bound to buffer i; a grid of `threads` threads. Arrays are written back."""
    launch(library.kernel(name), dict(enumerate(arrays)), (threads, 1, 1), (group, 1, 1))


def launch(
    kernel: SoftKernel,
    arrays: dict[int, np.ndarray],
    grid: tuple[int, int, int],
    group: tuple[int, int, int],
    memory: dict[int, int] | None = None,
) -> None:
    """`arrays` by buffer slot, written back; `grid` and `group` in threads."""
    bound = {slot: _aligned(a) for slot, a in arrays.items()}
    buffers = {slot: (m.ctypes.data, m.nbytes) for slot, m in bound.items()}
    execute.run([execute.Dispatch(kernel, buffers, grid, group, memory)], threads=2)
    for slot, array in arrays.items():
        array[...] = bound[slot].view(array.dtype).reshape(array.shape)


def _aligned(array: np.ndarray) -> np.ndarray:
    """The bytes of `array` where a vector of any type may start, as in a Metal buffer."""
    room = np.empty(array.nbytes + 64, np.uint8)
    start = -room.ctypes.data % 64
    room[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return room[start : start + array.nbytes]


def ulps(found: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Distance from float64 values in units of the last place of found's type; 0 where both NaN."""
    kind, info = found.dtype, np.finfo(found.dtype)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        wanted = exact.astype(kind)
        size = np.maximum(np.abs(exact), float(info.smallest_normal))
        unit = np.exp2(np.floor(np.log2(size)) - SIGNIFICAND_BITS[kind])
        off = np.abs(found.astype(np.float64) - exact) / unit
    same = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
    return np.where(same, 0.0, np.where(np.isnan(off), np.inf, off))
