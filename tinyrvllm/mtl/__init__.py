"""Metal from Python: the bridge. Knows nothing of language models."""
