"""Exercise 04, record: three dependent additions in one command buffer.

Complete `sum_of_four`. Check:  python -m lessons.check 04
"""

import numpy as np

from tinyrvllm.mtl import Device


def sum_of_four(
    device: Device, a: np.ndarray, b: np.ndarray, c: np.ndarray, d: np.ndarray
) -> np.ndarray:
    """(a + b) + (c + d), all float32 [count], computed by the device in three dispatches.

    One command buffer, one *concurrent* encoder: a + b and c + d may run side by side, so that one
    barrier, in the right place, is all that is needed.
    """
    add = device.library("elementwise").pipeline("add")  # out = x + y for `count` elements
    count = a.size
    size = np.uint32(count).tobytes()  # add's constants: at the slot after its three buffers

    # 1. A buffer for each input, device.from_numpy(array), and for each result,
    #    device.buffer(bytes).

    # 2. One command buffer, one concurrent encoder; `add` takes 256 threads in a threadgroup:
    #    encoder.dispatch(add, groups, threads, [x, y, out], size)

    # 3. The result, when the device is done.
    return np.zeros(count, np.float32)
