"""Metal from Python: the bridge. Knows nothing of language models.

    with open_device("soft") as device, device.from_numpy(numbers) as x:
        double = device.library_from_source(SOURCE, name="double").pipeline("double_all")
        with device.commands() as commands, commands.encoder() as encoder:
            encoder.dispatch(double, groups=(4, 1, 1), threads=(64, 1, 1), buffers=[x])
        print(x.numpy(np.float32))

Read api.py, objc.py, buffer.py, library.py, command.py and device.py. Beside them, apple.py and
sends.py are what macOS needs; on top of them, profile.py says where the time goes, and replay/
repeats what was recorded once.
"""

from .api import MetalError
from .buffer import Buffer
from .command import Commands, Encoder
from .device import Device, Limits, open_device
from .library import Library, Pipeline

__all__ = [
    "Buffer", "Commands", "Device", "Encoder", "Library", "Limits", "MetalError", "Pipeline",
    "open_device",
]  # fmt: skip
