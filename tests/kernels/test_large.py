"""Offsets beyond 2^31 elements, in the KV pool and in weights: sparse memory, touched at the end."""

import mmap

import numpy as np
import pytest
from numpy.typing import NDArray

from tinyrvllm.kernels import attention, embedding, rope, shapes
from tinyrvllm.kernels.case_attention import attend
from tinyrvllm.kernels.case_matmul import MATMULS, Kind
from tinyrvllm.kernels.cases import floats, ints
from tinyrvllm.kernels.kv_cache import KvLayout
from tinyrvllm.kernels.launch import Span, run, whole
from tinyrvllm.kernels.matmul import Matmul
from tinyrvllm.kernels.quant import Matrix
from tinyrvllm.mtl.device import Device

GIB = 1 << 30
KV_HEADS, HEAD_DIM = 8, 256
LAYOUT = KvLayout(66_000, 16, KV_HEADS, HEAD_DIM)
LAST = KvLayout(1, 16, KV_HEADS, HEAD_DIM)  # the layout of the last block alone
ROWS, COLUMNS = 2_700_000, 800  # of a weight matrix in F16: 2.16e9 elements


def sparse(nbytes: int) -> NDArray:
    """Zeros that take no memory until they are written."""
    return np.frombuffer(mmap.mmap(-1, nbytes), np.uint8)


def pool(device: Device, last: NDArray) -> Span:
    """A KV pool whose last block holds these bytes."""
    memory = sparse(LAYOUT.nbytes)
    memory[-LAST.nbytes :] = last.view(np.uint8).ravel()
    return whole(device.wrap(memory))


@pytest.mark.parametrize("queries", [1, 3])
def test_attention_reads_the_end_of_a_pool(device: Device, queries: int) -> None:
    assert LAYOUT.nbytes > 4 * GIB
    rng, tokens = np.random.default_rng(0), 5
    kv = rng.normal(size=(2, 16, KV_HEADS, HEAD_DIM)).astype(np.float16)
    q = rng.normal(size=(queries, KV_HEADS, HEAD_DIM)).astype(np.float32)
    out = device.buffer(q.nbytes)
    problem = attention.Attention(
        floats(device, q), pool(device, LAST.pack_k(kv[0])), pool(device, LAST.pack_v(kv[1])),
        ints(device, [LAYOUT.num_blocks - 1]), ints(device, [tokens]), ints(device, [0, queries]),
        whole(out), LAYOUT, KV_HEADS, 1, 1, 1 / 16,
    )  # fmt: skip
    one = queries == 1
    run(device, *attention.decode(problem, tokens) if one else [attention.prefill(problem, queries)])
    k, v = kv[:, :tokens].astype(np.float64)
    want = attend(q.astype(np.float64), k, v, 1 / 16)
    np.testing.assert_allclose(out.numpy(np.float32, q.shape), want, rtol=0, atol=4e-6)


def test_rope_writes_the_end_of_a_pool(device: Device) -> None:
    zeros = np.zeros(LAST.nbytes, np.uint8)
    k_pool, v_pool = pool(device, zeros), pool(device, zeros)
    qkv = np.arange(3 * KV_HEADS * HEAD_DIM, dtype=np.float32) % 1999
    x, size = whole(device.from_numpy(qkv)), 4 * KV_HEADS * HEAD_DIM
    q, k, v = (x.part(i * size, size) for i in range(3))
    slot = LAYOUT.num_blocks * 16 - 1
    run(
        device,
        rope.rope_and_store(
            q, k, v, x, ints(device, [0]), ints(device, [slot]), k_pool, v_pool, LAYOUT,
            1, KV_HEADS, 0, False, (KV_HEADS * HEAD_DIM,) * 3,
        ),
    )  # fmt: skip
    want = qkv.reshape(3, KV_HEADS, HEAD_DIM)[1:]
    count, offset = LAST.nbytes // 2, LAYOUT.nbytes - LAST.nbytes
    pools = [p.buffer.numpy(np.float16, (count,), offset=offset) for p in (k_pool, v_pool)]
    np.testing.assert_array_equal(LAST.unpack_k(pools[0])[-1], want[0])
    np.testing.assert_array_equal(LAST.unpack_v(pools[1])[-1], want[1])


@pytest.fixture(scope="module")
def weights(device: Device) -> Matrix:
    """Zeros, and 0, 1, 2, ... in the last row."""
    memory = sparse(2 * ROWS * COLUMNS)
    assert memory.nbytes > 4 * GIB
    memory[-2 * COLUMNS :].view(np.float16)[:] = np.arange(COLUMNS)
    return Matrix(whole(device.wrap(memory)), Kind.F16, ROWS, COLUMNS)


def test_embedding_reads_the_last_row(device: Device, weights: Matrix) -> None:
    y = device.buffer(4 * COLUMNS)
    run(device, embedding.launch(ints(device, [ROWS - 1]), weights, whole(y), 1))
    np.testing.assert_array_equal(y.numpy(np.float32), np.arange(COLUMNS))


@pytest.mark.long
@pytest.mark.parametrize("kernel", shapes.MATMULS)
def test_matmuls_read_the_last_row(device: Device, weights: Matrix, kernel: str) -> None:
    x, y = floats(device, np.ones((1, COLUMNS))), device.buffer(4 * ROWS)
    run(device, MATMULS[kernel](Matmul(x, weights, whole(y), 1)))
    result = y.numpy(np.float32)
    assert result[-1] == COLUMNS * (COLUMNS - 1) / 2 and not result[:-1].any()
