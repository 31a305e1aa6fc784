"""What a program of many dispatches is made of, on top of the bridge: nothing of it imports this.

A list of dispatches is recorded once and replayed at each step: with direct sends (recording.py),
or with a single one (indirect.py). Meanwhile its buffers stay resident (residency.py), and kernels
may follow addresses from one to another (addresses.py).
"""

from .addresses import gpu_address, use
from .indirect import IndirectCommands
from .recording import Recording
from .residency import ResidencySet

__all__ = ["IndirectCommands", "Recording", "ResidencySet", "gpu_address", "use"]
