"""Twenty-one kernels of other projects, run on the software device and compared with numpy.

Part of `python -m tests.soft.corpus --run PATH...`; their sources are read from the checkouts. The
numbers that launch a kernel (tiles, rows per simdgroup) are those of the project's host code.
"""

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np

from tests.soft.stdlib import launch
from tinyrvllm.soft.cpu.library import SoftLibrary, compile_library

RNG = np.random.default_rng(5)
RUNS: dict[tuple[str, str], Callable[[SoftLibrary, str], None]] = {}  # (file, kernel) -> check


def runs(file: str, *kernels: str) -> Callable[..., Callable[[SoftLibrary, str], None]]:
    def register(check: Callable[[SoftLibrary, str], None]) -> Callable[[SoftLibrary, str], None]:
        for kernel in kernels:
            RUNS[file, kernel] = check
        return check

    return register


def run_all(files: list[tuple[Path, list[Path]]]) -> int:
    """Runs what is found in the checkouts; returns how many failed."""
    failed = done = 0
    for (name, kernel), check in RUNS.items():
        found = [(p, folders) for p, folders in files if p.as_posix().endswith(name)]
        if not found:
            continue
        path, folders = found[0]
        library = compile_library(path.read_text(), filename=path.name, include=folders)
        try:
            check(library, kernel)
            print(f"{name} {kernel}: agrees with numpy")
        except AssertionError as error:
            failed += 1
            print(f"{name} {kernel}: FAILED: {' '.join(str(error).split())[:300]}")
        done += 1
    print(f"{done - failed} of {done} kernels run agree with numpy")
    return failed


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def close(found: np.ndarray, want: np.ndarray, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(found, want, rtol=tolerance, atol=tolerance)


def scalar(value: float, kind: type) -> np.ndarray:
    return np.array([value], kind)


def fields(*values: tuple[type, int | float]) -> np.ndarray:
    """A C struct with these fields."""
    names = [(f"f{k}", kind) for k, (kind, _) in enumerate(values)]
    out = np.zeros(1, np.dtype(names, align=True))
    for k, (_, value) in enumerate(values):
        out[f"f{k}"] = value
    return out


@runs("metal_src/affine.metal", "affine_f32")
def affine(library: SoftLibrary, name: str) -> None:
    x, y = normal(1000), np.zeros(1000, np.float32)
    arrays = [scalar(1000, np.uint64), scalar(1.5, np.float32), scalar(-2, np.float32), x, y]
    launch(library.kernel(name), dict(enumerate(arrays)), (1000, 1, 1), (64, 1, 1))
    close(y, x * 1.5 - 2)


@runs("metal_src/unary.metal", "gelu_f32", "silu_f16", "tanh_f32")
def unary(library: SoftLibrary, name: str) -> None:
    x = normal(1000).astype(np.float16 if name.endswith("f16") else np.float32)
    y, wide = np.zeros_like(x), x.astype(np.float64)
    gelu = 0.5 * wide * (1 + np.tanh(np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)))
    want = {"gelu": gelu, "silu": wide / (1 + np.exp(-wide)), "tanh": np.tanh(wide)}
    arrays = {0: scalar(1000, np.uint64), 1: x, 2: y}
    launch(library.kernel(name), arrays, (1000, 1, 1), (64, 1, 1))
    close(y, want[name.split("_")[0]], 2e-3 if x.dtype == np.float16 else 1e-5)


@runs("metal_src/cast.metal", "cast_f32_bf16")
def cast(library: SoftLibrary, name: str) -> None:
    x, y = normal(500), np.zeros(500, np.uint16)
    arrays = {0: scalar(500, np.uint64), 1: x, 2: y}
    launch(library.kernel(name), arrays, (500, 1, 1), (64, 1, 1))
    u = x.view(np.uint32)
    assert np.array_equal(y, (u + 0x7FFF + (u >> 16 & 1)) >> 16)


@runs("metal_src/reduce.metal", "softmax_f32", "rmsnorm_f32")
def rows(library: SoftLibrary, name: str) -> None:
    x, weight, y = normal(5, 300), normal(300), np.zeros((5, 300), np.float32)
    arrays = [
        scalar(x.size, np.uint32),
        scalar(300, np.uint32),
        x,
        y,
        weight,
        scalar(1e-5, np.float32),
    ]
    wide = x.astype(np.float64)
    e = np.exp(wide - wide.max(1, keepdims=True))
    norm = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-5) * weight
    used = 4 if name.startswith("softmax") else 6
    launch(library.kernel(name), dict(enumerate(arrays[:used])), (5 * 128, 1, 1), (128, 1, 1))
    close(y, e / e.sum(1, keepdims=True) if used == 4 else norm)


@runs("metal_src/sort.metal", "asort_asc_f32")
def argsort(library: SoftLibrary, name: str) -> None:
    x, order = normal(3, 100), np.zeros((3, 100), np.uint32)
    arrays = {0: x, 1: order, 2: scalar(100, np.int64), 3: scalar(128, np.int64)}
    launch(library.kernel(name), arrays, (128, 3, 1), (128, 1, 1), {0: 128 * 4})
    assert np.array_equal(order, x.argsort(1))


@runs("metal_src/mlx_gemm.metal", "gemm_nt_f32_f32_32_32_16_2_2")
@runs("steel_gemm_fused.metal", "steel_gemm_fused_nn_float16_float16_bm64_bn64_bk16_wm2_wn2")
@runs(
    "steel_gemm_fused_nax.metal", "steel_gemm_fused_nax_nt_float32_float32_bm64_bn64_bk256_wm2_wn2"
)
def steel_gemm(library: SoftLibrary, name: str) -> None:
    """simdgroup matrices through thread_elements(), or matmul2d with operands in registers."""
    m, n, k = 70, 90, 100
    half, by_column, tile = "float16" in name, "_nt_" in name, 64 if "bm64" in name else 32
    kind = np.float16 if half else np.float32
    a, b, d = normal(m, k).astype(kind), normal(k, n).astype(kind), np.zeros((m, n), kind)
    stored = np.ascontiguousarray(b.T) if by_column else b
    tiles_n, tiles_m = -(-n // tile), -(-m // tile)
    sizes = [m, n, k, k, k if by_column else n, n, tiles_n, tiles_m]
    params = fields(
        *[(np.int32, v) for v in sizes],
        *[(np.uint64, 0)] * 3,
        (np.int32, 0),
        (np.int32, k // (256 if "_nax_" in name else 16)),
        (np.int32, 0),
    )
    off = {10: False, 100: False, 110: False, 200: False, 201: False, 202: False, 300: False}
    kernel = library.kernel(name, off)
    arrays = {p.index: scalar(0, np.float64) for p in kernel.info.params if p.kind == "buffer"}
    arrays |= {0: a, 1: stored, 3: d, 4: params}
    launch(kernel, arrays, (tiles_n * 32, tiles_m * 2, 2), (32, 2, 2))
    close(d, a.astype(np.float64) @ b.astype(np.float64), 2e-2 if half else 1e-4)


@runs("kernels/softmax.metal", "block_softmax_float32")
def mlx_softmax(library: SoftLibrary, name: str) -> None:
    x, y = normal(4, 300), np.zeros((4, 300), np.float32)
    launch(library.kernel(name), {0: x, 1: y, 2: scalar(300, np.int32)}, (4 * 96, 1, 1), (96, 1, 1))
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    close(y, e / e.sum(1, keepdims=True))


@runs("kernels/rms_norm.metal", "rmsfloat32")
def mlx_rms(library: SoftLibrary, name: str) -> None:
    x, w, y = normal(4, 300), normal(300), np.zeros((4, 300), np.float32)
    arrays = [x, w, y, scalar(1e-5, np.float32), scalar(300, np.uint32), scalar(1, np.uint32)]
    launch(library.kernel(name, {20: True}), dict(enumerate(arrays)), (4 * 96, 1, 1), (96, 1, 1))
    close(y, x / np.sqrt((x.astype(np.float64) ** 2).mean(1, keepdims=True) + 1e-5) * w)


@runs("kernels/scan.metal", "contig_scan_inclusive_sum_float32_float32")
def mlx_scan(library: SoftLibrary, name: str) -> None:
    x, y = RNG.integers(0, 9, (3, 500)).astype(np.float32), np.zeros((3, 500), np.float32)
    arrays = {0: x, 1: y, 2: scalar(500, np.uint64)}
    launch(library.kernel(name), arrays, (128, 3, 1), (128, 1, 1))
    assert np.array_equal(y, x.cumsum(1))


@runs("kernels/quantized.metal", "affine_qmv_float_gs_64_b_4_batch_0")
def mlx_qmv(library: SoftLibrary, name: str) -> None:
    n, k = 24, 512
    codes = RNG.integers(0, 16, (n, k)).astype(np.uint8)
    scales, biases, x = normal(n, k // 64), normal(n, k // 64), normal(k)
    packed, y = codes[:, ::2] | codes[:, 1::2] << 4, np.zeros(n, np.float32)
    kernel = library.kernel(name, {200: False, 201: False, 202: False})
    arrays = {p.index: scalar(0, np.int64) for p in kernel.info.params if p.kind == "buffer"}
    arrays |= {0: packed, 1: scales, 2: biases, 3: x, 4: y}
    arrays |= {5: scalar(k, np.int32), 6: scalar(n, np.int32)}
    launch(kernel, arrays, (32, 2 * -(-n // 8), 1), (32, 2, 1))
    weights = codes * scales.repeat(64, 1).astype(np.float64) + biases.repeat(64, 1)
    close(y, weights @ x, 1e-3)


def ggml_blocks(kind: gguf.GGMLQuantizationType, n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Random blocks with sane scales, and their values."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    raw = RNG.integers(0, 256, (n, k // block, size)).astype(np.uint8)
    scales = {"Q4_0": [0], "Q8_0": [0], "Q4_K": [0, 2], "Q6_K": [size - 2]}[kind.name]
    for at in scales:
        raw[:, :, at : at + 2] = (
            RNG.uniform(0.01, 0.1, (n, k // block, 1)).astype(np.float16)
        ).view(np.uint8)
    raw = raw.reshape(n, -1)
    return raw, gguf.quants.dequantize(raw, kind)


def ggml_kind(name: str) -> gguf.GGMLQuantizationType:
    quantized = [q for q in gguf.GGMLQuantizationType if q.name.startswith("Q")]
    return next(q for q in quantized if f"_{q.name}" in name.replace("_q", "_Q"))


@runs(
    "ggml-metal.metal", "kernel_mul_mv_q4_0_f32", "kernel_mul_mv_q4_K_f32", "kernel_mul_mv_q6_K_f32"
)
def ggml_mul_mv(library: SoftLibrary, name: str) -> None:
    n, k, nsg = 32, 512, 2
    raw, weights = ggml_blocks(ggml_kind(name), n, k)
    x, y = normal(1, k), np.zeros((1, n), np.float32)
    i, u, s, row, size = np.int32, np.uint64, np.int16, raw.shape[1], raw.nbytes
    args = fields(
        (i, k),
        (i, n),
        (i, 1),
        (u, 0),
        (u, row),
        (u, size),
        (u, size),
        (i, k),
        (i, 1),
        (i, 1),
        (u, 4),
        (u, 4 * k),
        (u, 4 * k),
        (u, 4 * k),
        (i, n),
        (i, 1),
        (i, 4),
        (s, 1),
        (s, 1),
    )
    kernel = library.kernel(name, {600: nsg, 602: 1, 603: 1, 604: 1})
    rows_per_simdgroup = 4 if "q4_0" in name else 2
    groups = n // (rows_per_simdgroup * nsg)
    memory = {0: 128} if any(p.kind == "threadgroup" for p in kernel.info.params) else None
    launch(kernel, {0: args, 1: raw, 2: x, 3: y}, (groups * 32, nsg, 1), (32, nsg, 1), memory)
    close(y[0], weights.astype(np.float64) @ x[0], 1e-3)


@runs("ggml-metal.metal", "kernel_mul_mm_q8_0_f32")
def ggml_mul_mm(library: SoftLibrary, name: str) -> None:
    """simdgroup matrices, weights dequantised to half tiles of 64 x 32."""
    n, m, k = 100, 40, 256
    raw, weights = ggml_blocks(ggml_kind(name), n, k)
    x, y = normal(m, k), np.zeros((m, n), np.float32)
    i, u, s, size = np.int32, np.uint64, np.int16, raw.nbytes
    args = fields(
        (i, k),
        (i, 1),
        (u, raw.shape[1]),
        (u, size),
        (u, size),
        (i, 1),
        (u, 4),
        (u, 4 * k),
        (u, x.nbytes),
        (u, x.nbytes),
        (i, n),
        (i, m),
        (s, 1),
        (s, 1),
    )
    kernel = library.kernel(name, {700: False, 701: True, 702: 1, 704: 1, 705: 1})
    grid = (-(-m // 32) * 128, -(-n // 64), 1)
    launch(kernel, {0: args, 1: raw, 2: x, 3: y}, grid, (128, 1, 1), {0: 8192})
    want = x.astype(np.float64) @ weights.astype(np.float64).T
    close(y / np.abs(want).max(), want / np.abs(want).max(), 5e-3)


@runs("ggml-metal.metal", "kernel_get_rows_q8_0", "kernel_get_rows_q4_K")
def ggml_get_rows(library: SoftLibrary, name: str) -> None:
    n, k, wanted = 20, 512, np.array([3, 19, 0], np.int32)
    raw, weights = ggml_blocks(ggml_kind(name), n, k)
    y = np.zeros((3, k), np.float32)
    i, u, size = np.int32, np.uint64, raw.nbytes
    args = fields(
        (i, k // 16),
        (i, k),
        (u, raw.shape[1]),
        (u, size),
        (u, size),
        (i, 3),
        (u, 4),
        (u, 12),
        (u, 12),
        (u, 4 * k),
        (u, y.nbytes),
        (u, y.nbytes),
    )
    launch(library.kernel(name), {0: args, 1: raw, 2: wanted, 3: y}, (3 * 32, 1, 1), (32, 1, 1))
    assert np.array_equal(y, weights[wanted])
