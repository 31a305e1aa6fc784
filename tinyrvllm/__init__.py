"""A small LLM engine on Apple's GPU that you can read in a weekend.

    from tinyrvllm import LLM, SamplingParams

    with LLM("smollm2-135m") as llm:
        print(llm.generate("The capital of France is", SamplingParams(temperature=0))[0].text)
"""

from typing import TYPE_CHECKING

from tinyrvllm.errors import TinyrvllmError

if TYPE_CHECKING:
    from tinyrvllm.engine.llm import LLM, QueueFull, RequestOutput
    from tinyrvllm.engine.sampler import SamplingParams
    from tinyrvllm.runner.options import Options

__version__ = "0.1.0"
__all__ = ["LLM", "Options", "QueueFull", "RequestOutput", "SamplingParams", "TinyrvllmError"]


def __getattr__(name: str) -> object:
    # Imported on first use: numpy and tokenizers take a third of a second that --help,
    # the bridge and the software device do not need.
    if name in ("LLM", "QueueFull", "RequestOutput"):
        from tinyrvllm.engine import llm

        return getattr(llm, name)
    if name == "SamplingParams":
        from tinyrvllm.engine.sampler import SamplingParams

        return SamplingParams
    if name == "Options":
        from tinyrvllm.runner.options import Options

        return Options
    raise AttributeError(f"module 'tinyrvllm' has no attribute {name!r}")
