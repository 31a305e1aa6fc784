"""simdgroup_matrix in both forms: held by lane 0, and per lane where thread_elements() is used."""

import numpy as np
import pytest

from tests.soft.stdlib import library, run_kernel

RNG = np.random.default_rng(12)
TYPES = {"float": np.float32, "half": np.float16, "bfloat": np.uint16}
COMMON = """
template <class T, class A> kernel void products(device const T *a [[buffer(0)]], device const T *b [[buffer(1)]],
    device A *out [[buffer(2)]], constant uint &stride [[buffer(3)]]) {
  simdgroup_matrix<T, 8, 8> x, y, z(T(2)), id = simdgroup_matrix<T, 8, 8>(T(1));
  simdgroup_matrix<A, 8, 8> sum = make_filled_simdgroup_matrix<A, 8, 8>(A(0.5f)), plain;
  simdgroup_load(x, a, stride, ulong2(3, 1));            // columns 3.., rows 1..
  simdgroup_load(y, b, stride, 0, true);                 // transposed
  simdgroup_multiply_accumulate(sum, x, y, sum);
  simdgroup_multiply(plain, x, z);                       // z is 2 on the diagonal
  simdgroup_store(sum, out, 8);
  simdgroup_store(plain, out + 64, 16, ulong2(0, 0), true);
  x = x * id;
  simdgroup_store(x, (device T *)(out + 256), 8);
}
"""
LANES = """
kernel void owners(device float *out [[buffer(0)]], uint lane [[thread_index_in_simdgroup]]) {
  simdgroup_float8x8 m;
  m.thread_elements()[0] = lane * 2;
  m.thread_elements()[1] = lane * 2 + 1;
  simdgroup_store(m, out, 8);
}
kernel void scale_rows(device float *data [[buffer(0)]], uint lane [[thread_index_in_simdgroup]]) {
  simdgroup_float8x8 m, twice;
  simdgroup_load(m, data, 8);
  simdgroup_multiply(twice, m, simdgroup_float8x8(2.0f));
  float2 mine = twice.thread_elements();
  out_of(mine, lane);
  twice.thread_elements() = mine;
  simdgroup_store(twice, data, 8);
}
"""


def _instances() -> str:
    pairs = [("float", "float"), ("half", "float"), ("half", "half"), ("bfloat", "float")]
    return "".join(
        f'template [[host_name("{t}_{a}")]] kernel void products<{t}, {a}>(device const {t} *, '
        f"device const {t} *, device {a} *, constant uint &);\n"
        for t, a in pairs
    )


@pytest.fixture(scope="module", params=["lane 0", "per lane"])
def matrices(request: pytest.FixtureRequest):
    unused = "template <class M> void mention(thread M &m) { m.thread_elements(); }\n"
    return library((unused if request.param == "per lane" else "") + COMMON + _instances())


def _stored(x: np.ndarray, kind: str) -> np.ndarray:
    return (
        (x.view(np.uint32) >> 16).astype(np.uint16) if kind == "bfloat" else x.astype(TYPES[kind])
    )


def _value(x: np.ndarray, kind: str) -> np.ndarray:
    return (
        (x.astype(np.uint32) << 16).view(np.float32) if kind == "bfloat" else x.astype(np.float32)
    )


@pytest.mark.parametrize("kinds", ["float_float", "half_float", "half_half", "bfloat_float"])
def test_load_multiply_store(matrices, kinds: str) -> None:
    kind, accumulator = kinds.split("_")
    stride = 13
    a, b = (_stored(RNG.normal(size=(16, stride)).astype(np.float32), kind) for _ in "ab")
    out = np.zeros(512, TYPES[accumulator])
    run_kernel(matrices, kinds, a, b, out, np.array([stride], np.uint32), threads=32)
    x, y = _value(a, kind)[1:9, 3:11], _value(b, kind)[:8, :8].T
    want = x.astype(np.float64) @ y + 0.5
    tolerance = 2e-3 if accumulator == "half" else 1e-5
    np.testing.assert_allclose(out[:64].reshape(8, 8), want, rtol=tolerance, atol=tolerance)
    doubled = out[64:192].reshape(8, 16)[:, :8].T
    assert np.array_equal(doubled, (x * 2).astype(TYPES[accumulator]))
    again = out[256:].view(TYPES[kind])[:64]
    assert np.array_equal(_value(again, kind).reshape(8, 8), x)


def test_lane_ownership_is_apples() -> None:
    """The diagram that others drew from hardware: four lanes a row, two neighbours each."""
    source = LANES.replace("out_of(mine, lane);", "mine *= float2(lane, -1.0f);")
    lib = library(source)
    owners = np.zeros((8, 8), np.float32)
    run_kernel(lib, "owners", owners, threads=32)
    assert owners[0].tolist() == [0, 1, 2, 3, 16, 17, 18, 19]
    assert owners[1].tolist() == [4, 5, 6, 7, 20, 21, 22, 23]
    assert owners[4].tolist() == [32, 33, 34, 35, 48, 49, 50, 51]
    assert sorted(owners.ravel()) == list(range(64))
    data = RNG.normal(size=(8, 8)).astype(np.float32)
    before = data.copy()
    run_kernel(lib, "scale_rows", data, threads=32)
    factor = np.where(owners % 2 == 0, owners // 2, -1)
    np.testing.assert_allclose(data, before * 2 * factor, rtol=1e-6)
