"""A linter for one mistake: an array of matrix accumulators indexed by a loop that is not unrolled.

An array of simdgroup matrices lives in registers only as long as every index into it is a constant
after unrolling. One loop that stays a loop, and the whole array goes to memory: the kernel still
computes the right thing, ten times slower. No compiler warns.

    for (line, text) in spills.find(source): ...

Where NVIDIA's compiler is installed (no GPU is needed), `local_memory` says how much of a kernel
really went to memory.
"""

import re
from collections.abc import Mapping

DECLARATION = re.compile(
    r"\bsimdgroup_(?:(?:float|half|bfloat)8x8|matrix\s*<[^<>]*>)\s+(\w+)\s*((?:\[[^\]]*\]\s*)+)"
)
PARAMETER = re.compile(
    r"\bsimdgroup_(?:(?:float|half|bfloat)8x8|matrix\s*<[^<>]*>)\s*\(&\s*(\w+)\)\s*\["
)
LOOP = re.compile(
    r"(UNROLL\s+|_Pragma\s*\([^)]*unroll[^)]*\)\s*|#\s*pragma[^\n]*unroll[^\n]*\n\s*)?\bfor\s*\("
)
VARIABLE = re.compile(r"\b(?:u?short|u?int|int|size_t|auto)\s+(\w+)\s*=")
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


def find(source: str) -> list[tuple[int, str]]:
    """(line, what is wrong) for each loop that indexes a matrix array and is not unrolled."""
    text = COMMENT.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), source)
    arrays = {m[1] for m in DECLARATION.finditer(text)} | {m[1] for m in PARAMETER.finditer(text)}
    found = []
    for loop in LOOP.finditer(text):
        if loop[1]:
            continue
        head_end = _closing(text, loop.end() - 1, "()")
        variable = VARIABLE.search(text, loop.end(), head_end)
        if variable is None:
            continue
        body = text[head_end + 1 : _body_end(text, head_end + 1)]
        for array in sorted(arrays):
            use = re.search(rf"\b{array}\s*((?:\[[^\]]*\]\s*)+)", body)
            if use and re.search(rf"\b{variable[1]}\b", use[1]):
                line = text.count("\n", 0, loop.start() + len(loop[0])) + 1
                text_of = f"'{array}' is indexed by '{variable[1]}' of a loop that is not unrolled"
                found.append((line, f"{text_of}: it will be kept in memory, not in registers"))
    return found


def local_memory(source: str, kernel: str, constants: Mapping[str, int | bool]) -> int:
    """Bytes a thread of memory that should have been registers, as compiled for an H100 (sm_90).

    Raises MSLError where the source does not compile or NVRTC is not installed: the extra [cuda].
    """
    from tinyrvllm.soft.cuda import compiler, preprocess, program
    from tinyrvllm.soft.cuda.translate import for_nvrtc
    from tinyrvllm.soft.msl.preprocess import preprocess as expand
    from tinyrvllm.soft.msl.translate import translate

    compiler.nvrtc()
    unit = translate(expand(source, "program_source", preprocess.run, (), ()), "program_source")
    names = {constant.name: index for index, constant in unit.constants.items()}
    values = {names[name]: value for name, value in constants.items()}
    code = for_nvrtc(unit.code, "program_source")
    text = program.kernel(unit, code, unit.kernels[kernel], values)
    log = compiler.compile(text, "sm_90", ["--ptxas-options=-v"]).log
    return sum(map(int, re.findall(r"(\d+) bytes (?:stack frame|spill stores)", log)))


def _closing(text: str, start: int, pair: str) -> int:
    """Where the bracket that opens at `start` closes."""
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] == pair[0]) - (text[place] == pair[1])
        if depth == 0:
            return place
    return len(text)


def _body_end(text: str, start: int) -> int:
    """The end of the statement or block that begins at `start`."""
    place = start
    while place < len(text) and text[place] not in ";{":
        place = _closing(text, place, "()") + 1 if text[place] == "(" else place + 1
    return _closing(text, place, "{}") + 1 if text[place : place + 1] == "{" else place + 1
