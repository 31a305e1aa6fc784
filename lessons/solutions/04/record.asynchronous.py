"""Exercise 04, record: also right. Commits and waits by hand; adds in another order, in place."""

import numpy as np


def sum_of_four(device, a, b, c, d):
    add = device.library("elementwise").pipeline("add")
    buffers = [device.from_numpy(array) for array in (a, b, c, d)]
    groups = ((a.size + 255) // 256, 1, 1)
    commands = device.commands("sum of four")
    with commands.encoder(concurrent=True) as encoder:
        for x, y in ((buffers[0], buffers[3]), (buffers[1], buffers[2])):
            encoder.dispatch(add, groups, (256, 1, 1), [x, y, x], np.uint32(a.size).tobytes())
        encoder.barrier()
        arguments = [(buffers[0], 0), (buffers[1], 0), (buffers[2], 0)]
        encoder.dispatch(add, groups, (256, 1, 1), arguments, np.uint32(a.size).tobytes())
    commands.commit()
    commands.wait()
    return np.array(buffers[2].numpy(np.float32))
