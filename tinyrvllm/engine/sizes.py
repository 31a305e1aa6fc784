"""How much the engine may hold at a time, checked."""

from dataclasses import dataclass

from tinyrvllm.errors import TinyrvllmError

MIN_POOL = 4096  # tokens that the cache holds even if the context is shorter, for several requests


@dataclass(frozen=True)
class Sizes:
    """context_length, longest: the most tokens of a sequence, and that in whole blocks."""

    context_length: int
    longest: int
    num_blocks: int

    @classmethod
    def of(
        cls, trained: int, asked: int | None, block_size: int, num_blocks: int | None,
        max_running: int, max_queue: int | None, token_budget: int,
    ) -> "Sizes":  # fmt: skip
        """What `LLM` was asked for, with its defaults. `trained`: the model's own context.

        Raises TinyrvllmError for a number out of range, or a context that the pool cannot hold.
        """
        _check("block_size", block_size, 1)
        _check("num_blocks", num_blocks, 1)
        _check("max_running", max_running, 1)
        _check("max_queue", max_queue, 0)
        _check("token_budget", token_budget, max_running, " (max_running)")
        pool = trained if num_blocks is None else num_blocks * block_size
        context = min(trained, pool) if asked is None else asked
        if not 1 <= context <= trained:
            raise TinyrvllmError(
                f"a context of {context:,} tokens was asked for; "
                f"this model supports 1 to {trained:,}"
            )
        if context > pool:
            raise TinyrvllmError(
                f"a context of {context:,} tokens was asked for; {num_blocks} blocks of "
                f"{block_size} hold {pool:,}: raise num_blocks or lower the context"
            )
        if num_blocks is None:
            num_blocks = -(-max(context, MIN_POOL) // block_size)
        return cls(context, -(-context // block_size) * block_size, num_blocks)


def _check(name: str, value: int | None, least: int, why: str = "") -> None:
    if value is not None and value < least:
        raise TinyrvllmError(f"{name} must be at least {least}{why}, and {value} was given")
