"""The shape table: every kernel's shapes, once, for tests, the checking device and the bench.

`TABLE` is the short form that every test run takes; `LONG` adds what takes minutes; `BENCH` has the
shapes of real models, where time is worth measuring.
"""

from typing import TYPE_CHECKING

from . import gemm_tensor
from .cases import Case, case
from .quant import WEIGHT_TYPES

if TYPE_CHECKING:
    from ..mtl.device import Device

KINDS = tuple(kind.name for kind in WEIGHT_TYPES)
QUANTISED = tuple(kind for kind in KINDS if kind not in ("F32", "F16", "BF16"))
MATMULS = ("matvec", "ksplit", "gemm", "gemm_tensor")
SMOLLM2 = ((576, 576), (1536, 576), (576, 1536))  # outputs x inputs


def _matmuls() -> list[Case]:
    cases = []
    for kernel in MATMULS:
        # Every type; outputs that fill no tile; K of one block, ragged where a type allows it. The
        # first of each kernel runs on soft:check every time, so it has the edges: half a step of K.
        cases.append(case(kernel, kind="F32", rows=3, outputs=33, inputs=48))
        cases += [case(kernel, kind=kind, rows=3, outputs=33, inputs=512) for kind in KINDS]
        for rows in range(1, 41):
            cases.append(case(kernel, kind="Q8_0", rows=rows, outputs=70, inputs=96))
        for columns in (1, 7, 33, 130):
            cases.append(case(kernel, kind="F16", rows=5, outputs=columns, inputs=columns))
        cases += [
            case(kernel, kind="F32", rows=2, outputs=7, inputs=33),
            case(kernel, kind="BF16", rows=8, outputs=9, inputs=31),
            case(kernel, kind="F16", rows=6, outputs=40, inputs=70, bias=True, residual=True),
            case(kernel, kind="Q8_0", rows=3, outputs=40, inputs=64, activation="silu"),
            case(kernel, kind="Q8_0", rows=40, outputs=70, inputs=64, activation="gelu_tanh"),
            # Beyond half: only float activations and sums survive these.
            case(kernel, kind="Q8_0", rows=8, outputs=33, inputs=64, magnitude=1e5),
            case(kernel, kind="Q8_0", rows=8, outputs=33, inputs=64, magnitude=1e20),
        ]  # fmt: skip
    for kernel, rows in (("matvec", 1), ("matvec", 3), ("ksplit", 8), ("ksplit", 16)):
        for kind in ("Q8_0", "F16"):  # as a GPU of many cores wants it
            shape = {"kind": kind, "outputs": 130, "inputs": 576}
            cases.append(case(kernel, rows=rows, **shape, simdgroups=2048))
    many = {"outputs": 33, "simdgroups": 2048}
    cases += [
        case("ksplit", rows=8, kind="Q8_0", inputs=96, **many),
        case("ksplit", rows=8, kind="F16", inputs=31, **many),
        case("matvec", rows=3, kind="F16", outputs=33, inputs=33, norm=True),
        case("matvec", rows=3, kind="F16", inputs=33, norm=True, **many),
        case("matvec", rows=1, kind="Q8_0", inputs=1024, **many),  # whole steps, two under way
        case("matvec", rows=1, kind="Q4_K", outputs=130, inputs=512, simdgroups=16),
        case("matvec", rows=3, kind="Q8_0", inputs=1024, outputs=130, norm=True, simdgroups=16, apart=True),
        case("matvec", rows=3, kind="Q8_0", inputs=1024, outputs=50, simdgroups=16, apart=True),
        case("matvec", rows=2, kind="Q8_0", inputs=1024, outputs=50, activation="silu", simdgroups=16, apart=True),
        case("matvec", rows=2, kind="Q8_0", inputs=512, activation="silu", apart=True, **many),
        case("matvec", rows=5, kind="Q8_0", inputs=512, residual=True, squares=True, apart=True, **many),
        case("ksplit", rows=8, kind="Q8_0", inputs=1024, apart=True, **many),
        case("gemm", rows=20, kind="Q8_0", outputs=33, inputs=512, apart=True),
        case("matvec", rows=2, kind="F16", inputs=1024, residual=True, squares=True, **many),
        case("matvec", rows=1, kind="F16", inputs=576, norm=True, residual=True, squares=True, **many),
        case("matvec", rows=3, kind="Q8_0", inputs=512, outputs=70, simdgroups=16, join=(40, 13, 17), apart=True),
        case("matvec", rows=2, kind="F16", inputs=33, outputs=30, simdgroups=16, join=(20, 10)),
    ]
    for rows in (1, 3, 7):
        for fused in (False, True):
            cases.append(
                case(
                    "matvec", kind="Q8_0", rows=rows, outputs=130, inputs=576, norm=True,
                    residual=fused, squares=fused,
                )
            )  # fmt: skip
    huge = {"outputs": 130, "inputs": 576, "norm": True, "magnitude": 1e20}
    cases.append(case("matvec", kind="Q8_0", rows=3, **huge))
    return cases


def _rows() -> list[Case]:
    cases = [case("embed", kind=kind, rows=5, columns=512) for kind in KINDS]
    cases += [case("embed", kind="F16", rows=3, columns=columns) for columns in (1, 33, 1100)]
    cases.append(case("embed", kind="Q8_0", rows=4, columns=640, scale=25.298))
    cases += [case("embed", kind="Q8_0", rows=3, columns=n, squares=True) for n in (512, 576, 1120)]
    cases.append(case("embed", kind="Q8_0", rows=3, columns=576, scale=1e20, squares=True))
    cases.append(case("embed", kind="Q8_0", rows=4, columns=1024, apart=True))
    cases += [case("arrange", kind="Q8_0", rows=3, columns=n) for n in (32, 512, 1536)]
    cases += [case("arrange", kind=kind, rows=2, columns=256) for kind in ("F32", "F16", "Q6_K")]
    cases.append(case("arrange", kind="F16", rows=1, columns=33))
    cases.append(case("rmsnorm", rows=3, columns=130, residual=True))
    for columns in (1, 7, 33, 130, 960):
        cases.append(case("rmsnorm", rows=3, columns=columns))
        cases.append(case("softmax", rows=3, columns=columns, masked=0.5))
    cases += [
        case("rmsnorm", rows=2, columns=576, residual=True),
        case("rmsnorm", rows=1, columns=960, magnitude=1e5),
        case("rmsnorm", rows=1, columns=960, magnitude=1e20),
        case("rmsnorm", rows=2, columns=960, magnitude=1e-4),  # where epsilon counts
        case("softmax", rows=2, columns=1500),
        case("softmax", rows=2, columns=40, masked=1.0),
    ]
    for columns in (1, 7, 130, 4096, 4097, 9000):
        cases += [case("argmax", rows=3, columns=columns, values=v) for v in ("ties", "nan")]
    cases += [case("argmax", rows=2, columns=130, values=v) for v in ("all_nan", "masked")]
    for rows, columns in ((1, 1), (4, 130), (3, 9000)):
        cases.append(case("advance", rows=rows, columns=columns))
    cases.append(case("advance", rows=6, columns=33, block_size=8, blocks=2))
    for columns, k in ((1, 1), (7, 3), (130, 130), (1000, 40), (5000, 256)):
        cases += [case("top_k", rows=2, columns=columns, k=k, values=v) for v in ("ties", "normal", "nan")]
    return cases


def _elements() -> list[Case]:
    cases = [
        case(kernel, count=count)
        for kernel in ("add", "softcap", "copy", "to_half", "to_float")
        for count in (1, 1000)
    ]
    for activation in ("silu", "gelu_tanh", "gelu"):
        for magnitude in (3.0, 100.0, 1e5, 1e18):  # a product of two: 1e36 is a float
            cases.append(case("gate", count=700, activation=activation, magnitude=magnitude))
    cases.append(case("to_half", count=300, magnitude=1e5))
    cases.append(case("multiply_adds", count=300, rounds=3))
    cases += [case(kernel, count=300, magnitude=1e20) for kernel in ("add", "softcap", "copy")]
    for taps in (2, 3, 4):
        cases.append(case("short_conv", rows=(1, 5, 1), channels=70, taps=taps))
    cases.append(case("short_conv", rows=(1, 2, 9), channels=64, taps=3, fresh=True))
    cases.append(case("short_conv", rows=(2, 0, 3, 0), channels=64, taps=3, fresh=True))
    cases.append(case("short_conv", rows=(2, 1), channels=200, taps=3, magnitude=1e5))
    return cases


def _ropes() -> list[Case]:
    smollm = {"rows": 5, "heads": 9, "kv_heads": 3, "head_dim": 64, "rope_dim": 64}
    return [
        case("rope", **smollm, interleaved=True),
        case("rope", **smollm, norm=True),
        case("rope", **smollm, norm=True, interleaved=True),  # lanes turn what others have read
        case("rope", rows=2, heads=2, kv_heads=1, head_dim=18, rope_dim=14, norm=True),
        case("rope", **smollm, f32=True),
        case("rope", **smollm, f32=True, position=131_000),
        case("rope", **smollm, f32=True, magnitude=1e20),
        case("rope", rows=1, heads=4, kv_heads=1, head_dim=256, rope_dim=256, norm=True),
        case("rope", rows=3, heads=2, kv_heads=2, head_dim=32, rope_dim=32, norm=True, f32=True, magnitude=1e20),
        case("rope", rows=20, heads=3, kv_heads=3, head_dim=18, rope_dim=10, f32=True),
        case("rope", rows=3, heads=2, kv_heads=1, head_dim=16, rope_dim=0, block_size=8),
    ]


def _attentions() -> list[Case]:
    smollm = {"heads": 9, "kv_heads": 3, "head_dim": 64}
    cases = [
        # The first of each kernel runs on soft:check every time, so it has the edges.
        case("attend_one", contexts=(1, 15, 17, 16), heads=2, kv_heads=1, head_dim=18, spare=0),
        case("attend_one", contexts=(1, 15, 16, 17), **smollm),
        case("attend_one", contexts=(33, 1023, 1024, 1025), **smollm),
        case("attend_one", contexts=(20, 512), **smollm, bound=1500),
        case("attend_one", contexts=(20, 700), **smollm, window=512, unused=1e4),
        case("attend_one", contexts=(0, 40), queries=(0, 1), **smollm),
        case("attend_one", contexts=(0, 40), queries=(1, 1), **smollm, bound=600),  # a padded row
        case("attend_one", contexts=(50, 9, 7), queries=(1, 3, 1), **smollm),
        case("attend_one", contexts=(70, 5), heads=4, kv_heads=1, head_dim=256, window=30),
        case("attend_one", contexts=(33,), heads=2, kv_heads=2, head_dim=130),
        case("attend_one", contexts=(48,), heads=2, kv_heads=2, head_dim=130, spare=0),
        case("attend_one", contexts=(50, 3), heads=14, kv_heads=2, head_dim=18, f32=True, softcap=5.0),
        case("attend_one", contexts=(40, 41), heads=3, kv_heads=3, head_dim=7, block_size=8),
        case("attend_one", contexts=(60,), heads=16, kv_heads=1, head_dim=16, f32=True, magnitude=1e20),
        case("attend_one", contexts=(5, 37), heads=8, kv_heads=1, head_dim=16, f32=True, unused=1e30),
        case("attend_one", contexts=(1100,), heads=2, kv_heads=1, head_dim=16, f32=True, magnitude=1e3),
        # The first: edges, a padded row, and heads whose key another one writes.
        case("attend_unrotated", contexts=(1, 0, 16, 17), heads=4, kv_heads=2, head_dim=18, rope_dim=14, norm=True),
        case("attend_unrotated", contexts=(1, 2, 33, 300), **smollm, rope_dim=64, interleaved=True),
        case("attend_unrotated", contexts=(512, 513, 1025), **smollm, rope_dim=64, f32=True, norm=True),
        case("attend_unrotated", contexts=(40, 41, 9), heads=4, kv_heads=2, head_dim=128, rope_dim=128, window=8, f32=True, bound=600),
        case("attend_unrotated", contexts=(5, 70), heads=4, kv_heads=1, head_dim=256, rope_dim=256, softcap=5.0, f32=True),
        case("attend_unrotated", contexts=(3, 20), heads=3, kv_heads=3, head_dim=7, rope_dim=0, block_size=8),
        case("attend_unrotated", contexts=(1, 9), heads=2, kv_heads=1, head_dim=16, rope_dim=8, window=1),
        case("attend_spread", contexts=(1, 15, 17, 16), heads=2, kv_heads=1, head_dim=18, spare=0),
        case("attend_spread", contexts=(33, 600, 1025), **smollm),
        case("attend_spread", contexts=(20, 700), **smollm, window=512, unused=1e4),
        case("attend_spread", contexts=(0, 40, 9), queries=(1, 1, 3), **smollm, bound=600),
        case("attend_spread", contexts=(70, 5), heads=4, kv_heads=1, head_dim=256, window=30),
        case("attend_spread", contexts=(48,), heads=2, kv_heads=2, head_dim=130, spare=0),
        case("attend_spread", contexts=(50, 3), heads=14, kv_heads=2, head_dim=18, f32=True, softcap=5.0),
        case("attend_spread", contexts=(60,), heads=16, kv_heads=1, head_dim=16, f32=True, magnitude=1e20),
        case("attend_spread", contexts=(5, 300), heads=4, kv_heads=1, head_dim=128, f32=True, unused=1e30),
        case("attend_tile", contexts=(32, 5, 80), queries=(9, 1, 40), heads=4, kv_heads=2, head_dim=18, window=40, spare=0),
        case("attend_tile", contexts=(33, 100, 5), queries=(33, 50, 1), **smollm),
        case("attend_tile", contexts=(100, 40), queries=(50, 7), **smollm, window=20),
        case("attend_tile", contexts=(2, 15, 16, 17), queries=(2, 15, 9, 16), **smollm),
        case("attend_tile", contexts=(1023, 1024, 1025), queries=(33, 2, 5), **smollm),
        case("attend_tile", contexts=(1025, 90), queries=(40, 90), **smollm, window=512),
        case("attend_tile", contexts=(60,), queries=(60,), **smollm, f32=True),
        case("attend_tile", contexts=(5, 37), queries=(3, 20), **smollm, f32=True, unused=1e30),
        case("attend_tile", contexts=(37,), queries=(20,), **smollm, f32=True, magnitude=1e20),
        case("attend_tile", contexts=(40,), queries=(17,), heads=2, kv_heads=1, head_dim=128),
        case("attend_tile", contexts=(40,), queries=(35,), heads=2, kv_heads=1, head_dim=18, softcap=3.0),
        case("attend_wide", contexts=(32, 48), queries=(9, 20), heads=4, kv_heads=2, head_dim=130, window=40, spare=0),
        case("attend_wide", contexts=(40, 9), queries=(35, 3), heads=4, kv_heads=1, head_dim=256, window=9),
        case("attend_wide", contexts=(2, 15, 16, 17), queries=(2, 15, 9, 16), heads=2, kv_heads=1, head_dim=256),
        case("attend_wide", contexts=(1023, 1024, 1025), queries=(9, 2, 5), heads=2, kv_heads=1, head_dim=256, window=1024),
        case("attend_wide", contexts=(40,), queries=(12,), heads=2, kv_heads=2, head_dim=130),
        case("attend_wide", contexts=(40,), queries=(35,), heads=2, kv_heads=1, head_dim=80, f32=True),
        case("attend_wide", contexts=(5, 37), queries=(3, 20), heads=2, kv_heads=1, head_dim=80, f32=True, unused=1e30),
        case("attend_wide", contexts=(37,), queries=(20,), heads=2, kv_heads=1, head_dim=80, f32=True, magnitude=1e20),
        case("naive", contexts=(40,), queries=(7,), **smollm, window=12),
        case("naive", contexts=(1025,), queries=(2,), **smollm, window=2000),
        case("naive", contexts=(17,), queries=(1,), heads=4, kv_heads=1, head_dim=18, f32=True, softcap=4.0),
        case("naive", contexts=(17,), queries=(3,), heads=4, kv_heads=2, head_dim=18, f32=True, unused=1e30),
        case("naive", contexts=(17,), queries=(3,), heads=4, kv_heads=2, head_dim=18, f32=True, magnitude=1e20),
    ]  # fmt: skip
    for ratio in range(1, 9):
        shape = {"heads": 2 * ratio, "kv_heads": 2}
        cases.append(case("attend_one", contexts=(21,), head_dim=16, **shape))
        cases.append(case("attend_tile", contexts=(21,), queries=(5,), head_dim=64, **shape))
        cases.append(case("attend_wide", contexts=(21,), queries=(5,), head_dim=256, **shape))
        cases.append(case("naive", contexts=(21,), queries=(5,), head_dim=64, **shape))
    return cases


def _long() -> list[Case]:
    cases = []
    for kernel in MATMULS:
        for rows in range(1, 41):
            cases.append(case(kernel, kind="Q4_1", rows=rows, outputs=130, inputs=576))
        for kind in QUANTISED:
            inputs = 2560 if kind.endswith("_K") else 1536
            cases.append(case(kernel, kind=kind, rows=4, outputs=576, inputs=inputs))
            cases.append(case(kernel, kind=kind, rows=17, outputs=130, inputs=768, residual=True))
        for inputs in (576, 960, 1536, 2560):
            cases.append(case(kernel, kind="Q4_1", rows=2, outputs=960, inputs=inputs))
    for head_dim in range(16, 257, 15):
        kernel = "attend_wide" if head_dim > 128 else "attend_tile"
        cases.append(case("attend_one", contexts=(70,), heads=4, kv_heads=2, head_dim=head_dim))
        cases.append(
            case(kernel, contexts=(70,), queries=(37,), heads=4, kv_heads=2, head_dim=head_dim)
        )
    return cases


def runnable(table: list[Case], device: "Device") -> list[Case]:
    """The cases whose kernels this device can compile: all, but gemm_tensor's before Metal 4."""
    if not gemm_tensor.missing(device):
        return table
    return [case for case in table if case.kernel != "gemm_tensor"]


TABLE = [*_matmuls(), *_rows(), *_elements(), *_ropes(), *_attentions()]
LONG = _long()
_HEADS = {"smollm2": (9, 3, 64), "gemma3": (4, 1, 256)}
BENCH = [
    *(
        case(kernel, kind=kind, rows=rows, outputs=outputs, inputs=inputs)
        for kind in ("F16", "Q8_0", "Q4_1")
        for outputs, inputs in ((2560, 960), *SMOLLM2)
        for kernel in MATMULS
        for rows in (1, 2, 4, 8, 16, 32, 128)
    ),
    case("embed", kind="Q8_0", rows=128, columns=576),
    case("rmsnorm", rows=1, columns=576),
    case("rmsnorm", rows=128, columns=576),
    case("argmax", rows=1, columns=49152),
    case("top_k", rows=1, columns=49152, k=40, values="normal"),
    *(
        case("attend_one", contexts=(n,), heads=heads, kv_heads=kv_heads, head_dim=head_dim)
        for heads, kv_heads, head_dim in _HEADS.values()
        for n in (128, 1024, 4096)
    ),
    case("attend_tile", contexts=(128,), queries=(128,), heads=9, kv_heads=3, head_dim=64),
    case("attend_wide", contexts=(128,), queries=(128,), heads=4, kv_heads=1, head_dim=256),
    case("naive", contexts=(128,), queries=(128,), heads=9, kv_heads=3, head_dim=64),
]
