"""Requests to batches to text. Knows tokens, blocks and time; knows no GPU."""
