"""A small LLM engine on Apple's GPU that you can read in a weekend."""

__version__ = "0.1.0"
