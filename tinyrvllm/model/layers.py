"""The maths of the supported models, as their papers write it.

Plain functions over numpy arrays of float32 or float64, T rows (tokens) at a time. Nothing here
knows of files, caches or batches: `reference.py` puts the pieces together.
"""

import numpy as np


def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis (Zhang and Sennrich 2019)."""
    mean_square = np.vecdot(x, x)[..., None] / x.shape[-1]
    return x * (weight / np.sqrt(mean_square + eps))


def rope_table(positions: np.ndarray, inv_freq: np.ndarray) -> np.ndarray:
    """e^(i * position * inv_freq): complex128 [T, 1, rope_dim / 2], the 1 being the heads."""
    return np.exp(1j * positions[:, None, None] * inv_freq)


def rotate(x: np.ndarray, table: np.ndarray, interleaved: bool) -> None:
    """Rotary embedding (Su et al. 2021) of x [T, heads, head_dim], in place.

    Turns each pair of elements by its position's angle: pairs (2i, 2i + 1) when interleaved, else
    (i, i + rope_dim / 2). Elements from rope_dim on stay as they are.
    """
    half = table.shape[-1]
    if interleaved:  # the parts of a complex number, which is turned by multiplying it
        pairs = x[..., : 2 * half].view(np.result_type(x, np.complex64))
        pairs *= table
    else:
        a, b, cos, sin = x[..., :half], x[..., half : 2 * half], table.real, table.imag
        a[...], b[...] = a * cos - b * sin, b * cos + a * sin


def attention(
    q: np.ndarray,  # [S, n, heads, head_dim] n queries of each of S sequences
    k: np.ndarray,  # [S, c, kv_heads, head_dim]
    v: np.ndarray,  # [S, c, kv_heads, head_dim]
    scale: float,
    mask: np.ndarray | None,  # [S, n, c] see attention_mask
    softcap: float | None,
) -> np.ndarray:
    """softmax(q k^T * scale + mask) v (Vaswani et al. 2017): [S, n, heads * head_dim].

    heads / kv_heads query heads share a key head (Ainslie et al. 2023). With a soft cap the scores
    are cap * tanh(scores / cap) (Gemma 2).
    """
    (S, n, heads, head_dim), (c, kv_heads) = q.shape, k.shape[1:3]
    group = heads // kv_heads
    grouped = (q * scale).reshape(S, n, kv_heads, group, head_dim).transpose(0, 2, 3, 1, 4)
    grouped = grouped.reshape(S, kv_heads, group * n, head_dim)
    scores = grouped @ k.transpose(0, 2, 3, 1)  # [S, kv_heads, group * n, c]
    if softcap is not None:
        scores = np.tanh(scores / softcap) * softcap
    if mask is not None:
        scores.reshape(S, kv_heads, group, n, c)[...] += mask[:, None, None]
    scores -= scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores, out=scores)
    values = weights @ v.transpose(0, 2, 1, 3)  # [S, kv_heads, group * n, head_dim]
    values /= weights.sum(axis=-1, keepdims=True)
    values = values.reshape(S, kv_heads, group, n, head_dim).transpose(0, 3, 1, 2, 4)
    return values.reshape(S, n, heads * head_dim)


def attention_mask(
    query_positions: np.ndarray,  # [S, n]
    key_positions: np.ndarray,  # [S, c]
    window: int | None,
    dtype: type[np.floating],
) -> np.ndarray | None:
    """[S, n, c]: 0 where a query may look and -inf where it may not; None if it may everywhere.

    A query sees no later position and, with a window, only that many, its own included (Beltagy et
    al. 2020).
    """
    age = query_positions[:, :, None] - key_positions[:, None, :]
    hidden = age < 0 if window is None else (age < 0) | (age >= window)
    return np.where(hidden, -np.inf, 0).astype(dtype) if hidden.any() else None


def silu(x: np.ndarray) -> np.ndarray:
    """x * sigmoid(x) (Elfwing et al. 2017)."""
    with np.errstate(over="ignore"):  # exp(-x) of a very negative x: x / inf is 0, rightly
        return x / (1 + np.exp(-x))


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    """The tanh form of GELU (Hendrycks and Gimpel 2016), by (1 + tanh(u)) / 2 = sigmoid(2u)."""
    u = np.sqrt(2 / np.pi).item() * (x + 0.044715 * x * x * x)
    with np.errstate(over="ignore"):  # see silu
        return x / (1 + np.exp(-2 * u))


def short_conv(
    x: np.ndarray,  # [n, hidden]
    weight: np.ndarray,  # [hidden, kernel] the last column meets the newest row
    history: np.ndarray,  # [kernel - 1, hidden] the rows before x
) -> tuple[np.ndarray, np.ndarray]:
    """Causal depthwise convolution (LFM2): y [n, hidden] and the history for the rows after x."""
    rows = np.concatenate([history, x])  # [kernel - 1 + n, hidden]
    n, kernel = len(x), weight.shape[1]
    y = sum(rows[j : j + n] * weight[:, j] for j in range(1, kernel))
    return y + rows[:n] * weight[:, 0], rows[n:]
