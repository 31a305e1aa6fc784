"""MSL on an NVIDIA GPU: NVRTC compiles what the front end translates, the CUDA driver runs it.

Read in this order: translate.py (what NVRTC needs said differently), compiler.py and include/ (how
a kernel becomes machine code), library.py (what a host asks for), driver.py (CUDA's calls),
memory.py (buffers on two sides), graph.py (recorded dispatches), engine.py (how the double runs
command buffers).
"""

from typing import TYPE_CHECKING

from tinyrvllm.soft.cuda.driver import NoDriver

if TYPE_CHECKING:
    from tinyrvllm.soft.cuda.engine import CudaEngine

__all__ = ["NoDriver", "open_engine"]


def open_engine() -> "CudaEngine":
    """The first NVIDIA GPU. Raises NoDriver."""
    from tinyrvllm.soft.cuda.engine import CudaEngine

    return CudaEngine()
