"""Metal's words that C++ spells otherwise: what the front end rewrites, in one kernel, by its results."""

import numpy as np
import pytest

from tests.soft.stdlib import library, run_kernel
from tinyrvllm.soft.msl import MSLError

SOURCE = """
namespace metal { METAL_FUNC bfloat abs(bfloat x) { return bfloat(abs(float(x))); } }   // as MLX does

template <typename T> struct pair_of {
  T a, b;
  pair_of() thread = default;
  pair_of() device = default;
  T sum() const thread { return a + b; }
  T sum() const device { return a + b; }
  T sum() const threadgroup { return a + b; }
};
struct point { float x; int y; };
template <typename T, int N> struct frag { typedef metal::vec<T, N> type; };
METAL_FUNC float load(device const float *p) { return p[0]; }
METAL_FUNC float load(constant const float *p) { return p[0] + 100; }     // never: same signature here
template <typename T> bool operator<(pair_of<T> l, pair_of<T> r) { return l.a < r.a; }
METAL_FUNC float dot3(uint3 v, float k) { return (v.x + v.y * 10 + v.z * 100) * k; }
METAL_FUNC float dot2(float2 v) { return v.x + v.y * 10; }
METAL_FUNC float dot4(float4 v) { return dot(v, float4(1, 10, 100, 1000)); }
METAL_FUNC float at(point p) { return p.x + p.y; }
METAL_FUNC void fill(threadgroup float tile[32], uint i) { tile[i] = i; }
METAL_FUNC float max(float4 v) { return max(max(v.x, v.y), max(v.z, v.w)); }          // joins metal's
static float plain(uint3 id [[thread_position_in_grid]]) { return id.x; }
constant float table[3] = {1.5, 2.5, 3.5};

template <typename T, int ROWS, bool WIDE>
[[kernel, max_total_threads_per_threadgroup(ROWS * 32)]] void words(
    device const T *in [[buffer(0)]], device float *out [[buffer(1)]], uint i [[thread_index_in_threadgroup]]) {
  threadgroup float tile[32] = {0};
  fill(tile, i);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (WIDE) { threadgroup float4 big[1536]; big[i] = 0; } else { threadgroup float big[4096]; big[i] = 0; }
  if (i) return;
  pair_of<T> p = {2, 3}, q = {4, 5};
  const int2 offset(3, int(in[0]));
  typename frag<bool, 2>::type flags;
  flags[0] = true; flags[1] = false;
  float4 v = float4(in[0], in[1], in[2], in[3]);
  out[0] = p.sum() * 10 + (p < q);
  out[1] = offset.x * 10 + offset.y;
  out[2] = dot3({1, 2, 3u}, 2);
  out[3] = at({0.5f, 7});
  out[4] = flags[0] + 2 * flags[1];
  out[5] = dot(float4(v < 2.5f), float4(1, 10, 100, 1000));
  out[6] = static_cast<float2>(int2(5, 6)).y + (float)((half)in[1]) + float(static_cast<bfloat>(half(0.5h)));
  out[7] = max(v) + max(1.0f, 2.0f) + plain(uint3(4));
  out[8] = load(out + 9) + table[1] + tile[31];
  out[9] = float(metal::abs(bfloat(-2.0bf))) + 1.0e1 + 0x1p-1;
  out[10] = is_same_v<T, float> + numeric_limits<T>::is_integer * 2 + sizeof(bool4);
  out[11] = dot2({0.5f, 2});
  out[12] = dot4({1, 2, 3u, 4.0f});
}
template [[host_name("words_wide")]] [[kernel]] void words<float, 2, true>(
    device const float *, device float *, uint);
template [[host_name("words_narrow")]] [[kernel]] decltype(words<float, 4, false>) words<float, 4, false>;
"""


def test_rewritten_words_mean_what_metal_means() -> None:
    lib = library(SOURCE)
    assert lib.functions["words_wide"].max_total_threads == 64
    assert lib.functions["words_narrow"].max_total_threads == 128
    want = [51, 31, 642, 7.5, 1, 11, 8.5, 10, 33.5, 12.5, 5, 20.5, 4321]
    for name in ("words_wide", "words_narrow"):
        out = np.zeros(13, np.float32)
        run_kernel(lib, name, np.array([1, 2, 3, 4], np.float32), out, threads=32)
        assert out.tolist() == want


@pytest.mark.parametrize(
    "statement",
    [
        "threadgroup float t[32]; own(t);",  # an address space cannot be dropped
        "own(x);",
        "device float *p = x; thread float *q = p;",
    ],
)
def test_address_spaces_are_kept_apart(statement: str) -> None:
    source = (
        "void own(thread float *p) { p[0] = 1; }\n"
        f"kernel void k(device float *x [[buffer(0)]]) {{ {statement} }}"
    )
    with pytest.raises(MSLError, match=r"stdlib\.metal:4"):
        library(source)


def test_an_object_may_be_copied_out_of_any_address_space() -> None:
    source = (
        "struct S { float a; int b; };\n"
        "float both(S s) { return s.a + s.b; }\n"
        "kernel void k(device S *x [[buffer(0)]], device float *y [[buffer(1)]]) {\n"
        "  threadgroup S shared; shared = x[0]; S mine = shared; x[1] = mine; y[0] = both(x[1]);\n}"
    )
    x, y = (
        np.array([(1.5, 2), (0, 0)], [("a", np.float32), ("b", np.int32)]),
        np.zeros(1, np.float32),
    )
    run_kernel(library(source), "k", x, y, threads=1)
    assert y[0] == 3.5 and x[1] == x[0]


def test_an_instantiation_may_leave_its_arguments_to_be_deduced() -> None:
    source = (
        "template <typename T> [[kernel]] void twice(device const T *x [[buffer(0)]],\n"
        "    device T *y [[buffer(1)]], uint i [[thread_position_in_grid]]) { y[i] = 2 * x[i]; }\n"
        'template [[host_name("twice_half")]] [[kernel]] void twice(\n'
        "    device const half *x [[buffer(0)]], device half *y [[buffer(1)]],\n"
        "    uint i [[thread_position_in_grid]]);"
    )
    x = np.arange(50, dtype=np.float16)
    y = np.zeros_like(x)
    run_kernel(library(source), "twice_half", x, y, threads=50)
    assert np.array_equal(y, x * 2)
