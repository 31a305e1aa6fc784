"""Metal from Python: the bridge. Knows nothing of language models.

    with open_device("soft") as device, device.from_numpy(numbers) as x:
        double = device.library_from_source(SOURCE, name="double").pipeline("double_all")
        with device.commands() as commands, commands.encoder() as encoder:
            encoder.dispatch(double, groups=(4, 1, 1), threads=(64, 1, 1), buffers=[x])
        print(x.numpy(np.float32))

Read api.py, objc.py and apple.py, then device.py, buffer.py, library.py and command.py; indirect.py
and recording.py replay what was recorded once, profile.py says where the time goes.
"""

from .api import MetalError
from .buffer import Buffer
from .command import Commands, Encoder
from .device import Device, Limits, open_device
from .indirect import IndirectCommands, ResidencySet
from .library import Library, Pipeline

__all__ = [
    "Buffer",
    "Commands",
    "Device",
    "Encoder",
    "IndirectCommands",
    "Library",
    "Limits",
    "MetalError",
    "Pipeline",
    "ResidencySet",
    "open_device",
]
