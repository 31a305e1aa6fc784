"""Each formula against another way to compute it, in float64."""

from collections.abc import Callable

import numpy as np
import pytest

from tinyrvllm.model import layers

RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize("window", [None, 1, 3, 100])
@pytest.mark.parametrize("softcap", [None, 0.7])
@pytest.mark.parametrize("n, c", [(1, 1), (1, 9), (4, 4), (4, 9)])
def test_attention_one_query_at_a_time(
    n: int, c: int, window: int | None, softcap: float | None
) -> None:
    heads, kv_heads, head_dim, scale = 6, 2, 4, 0.3
    q = RANDOM.standard_normal((n, heads, head_dim))
    k, v = RANDOM.standard_normal((2, c, kv_heads, head_dim))
    expected = np.empty((n, heads, head_dim))
    for i in range(n):
        position = c - n + i
        first = 0 if window is None else max(0, position - window + 1)
        for head in range(heads):
            seen = slice(first, position + 1), head // 3
            scores = k[seen] @ q[i, head] * scale
            if softcap is not None:
                scores = softcap * np.tanh(scores / softcap)
            weights = np.exp(scores) / np.exp(scores).sum()
            expected[i, head] = weights @ v[seen]
    positions = np.arange(c)[None]
    mask = layers.attention_mask(positions[:, c - n :], positions, window, np.float64)
    found = layers.attention(q[None], k[None], v[None], scale, mask, softcap)
    np.testing.assert_allclose(found[0], expected.reshape(n, -1), rtol=1e-12)


def test_attention_of_large_scores_is_finite() -> None:
    q = np.full((1, 2, 1, 4), 1e18, np.float32)
    found = layers.attention(q, q, np.ones_like(q), 1.0, None, None)
    np.testing.assert_array_equal(found, 1)


@pytest.mark.parametrize("interleaved", [True, False])
def test_rotation_is_multiplication_by_a_complex_number(interleaved: bool) -> None:
    x = RANDOM.standard_normal((5, 3, 8))
    positions = np.array([0, 1, 2, 1000, 7])
    inv_freq = 10000.0 ** -(np.arange(4) / 4)
    pairs = x.reshape(5, 3, 4, 2) if interleaved else x.reshape(5, 3, 2, 4).swapaxes(2, 3)
    turned = (pairs[..., 0] + 1j * pairs[..., 1]) * np.exp(
        1j * positions[:, None, None] * inv_freq
    )
    layers.rotate(x, layers.rope_table(positions, inv_freq), interleaved)
    pairs = x.reshape(5, 3, 4, 2) if interleaved else x.reshape(5, 3, 2, 4).swapaxes(2, 3)
    np.testing.assert_allclose(pairs[..., 0] + 1j * pairs[..., 1], turned, rtol=1e-9)


@pytest.mark.parametrize("act", [layers.silu, layers.gelu_tanh])
def test_activations_of_large_numbers(act: Callable[[np.ndarray], np.ndarray]) -> None:
    """In float32 exp(1000) is infinite: that is no error, in whatever thread."""
    with np.errstate(over="raise", invalid="raise"):
        found = act(np.array([-1000, 0, 1000], np.float32))
    np.testing.assert_array_equal(found, [0, 0, 1000])


def test_rms_norm_gives_rows_of_mean_square_one() -> None:
    x = RANDOM.standard_normal((4, 3, 16)) * 50
    found = layers.rms_norm(x, np.full(16, 2.0), eps=0)
    np.testing.assert_allclose(np.mean(found**2, axis=-1), 4)


def test_activations() -> None:
    x = np.array([-200.0, -3, -0.1, 0, 0.1, 3, 200])
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(layers.silu(x), x * (1 + np.tanh(x / 2)) / 2, atol=1e-15)
        inner = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
        np.testing.assert_allclose(layers.gelu_tanh(x), x * (1 + np.tanh(inner)) / 2, atol=1e-15)


@pytest.mark.parametrize("cut", range(7))
def test_short_convolution_in_two_pieces(cut: int) -> None:
    x, weight = RANDOM.standard_normal((6, 5)), RANDOM.standard_normal((5, 3))
    expected = np.stack(
        [np.convolve(x[:, h], weight[h, ::-1])[:6] for h in range(5)], axis=1
    )
    first, history = layers.short_conv(x[:cut], weight, np.zeros((2, 5)))
    second, history = layers.short_conv(x[cut:], weight, history)
    np.testing.assert_allclose(np.concatenate([first, second]), expected)
    np.testing.assert_array_equal(history, x[-2:])
