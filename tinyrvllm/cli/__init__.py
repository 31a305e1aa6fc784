"""The parts of `python -m tinyrvllm.generate`."""
