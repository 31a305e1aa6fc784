"""One file for each command of `python -m tinyrvllm.bench`, and what they share."""
