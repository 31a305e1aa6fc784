"""A translation unit for NVRTC: the user's code, then one entry point."""

from collections.abc import Mapping

from tinyrvllm.soft.cuda.translate import CLOSE, OPEN
from tinyrvllm.soft.msl.constants import as_macros
from tinyrvllm.soft.msl.kernels import Kernel
from tinyrvllm.soft.msl.translate import KernelUnit, Unit

Constants = Mapping[int, int | float | bool]
ENTRY = "msl_entry"
MAX_THREADS = 1024


def syntax(whole: Unit, code: str) -> str:
    """All kernels at once, to be looked at only; every function constant is 0."""
    functions = enumerate(unit.kernel.function for unit in whole.kernels.values())
    lines = (f"constexpr auto msl_kernel{i} = &{function};" for i, function in functions)
    return _program(code, as_macros(whole.constants, {}), "\n".join(lines) + "\n" + CLOSE)


def kernel(whole: Unit, code: str, unit: KernelUnit, constants: Constants) -> str:
    """One kernel with its function constants."""
    return _program(code, as_macros(whole.constants, constants), CLOSE + "\n" + entry(unit.kernel))


def _program(code: str, values: str, end: str) -> str:
    """`end` closes the user's namespace."""
    # Small functions take threadgroup pointers: inlined, the compiler knows which memory is meant.
    head = f'{values}#include "metal_cuda.h"\n#define inline __forceinline__\n{OPEN}\n'
    return f'{head}{code}\n# 1 "msl_entries"\n{end}\n'


def entry(kernel: Kernel) -> str:
    """The kernel function that CUDA launches: a pointer for each buffer, then byte offsets of the
    [[threadgroup(n)]] arguments."""
    parameters, arguments = [], []
    for p in kernel.params:
        if p.kind == "buffer":
            # What is `constant` in Metal does not change while the kernel runs.
            constant = "const char *__restrict__" if p.type.startswith("constant") else "char *"
            parameters.append(f"{constant} buffer{p.index}")
            arguments.append(f"msl::Pointer{{(char *)buffer{p.index}}}")
        elif p.kind == "threadgroup":
            parameters.append(f"unsigned offset{p.index}")
            arguments.append(f"msl::Pointer{{msl_threadgroup + offset{p.index}}}")
        else:
            arguments.append(f"msl::{p.kind}()")
    threads = kernel.max_total_threads or MAX_THREADS
    return (
        f'extern "C" __global__ void __launch_bounds__({threads}) {ENTRY}({", ".join(parameters)}) '
        f"{{ using namespace msl_user; ({kernel.function})({', '.join(arguments)}); }}"
    )
