"""From the last layer's output to logits, and from logits to tokens."""

from gguf import GGMLQuantizationType

from tinyrvllm.kernels import argmax, elementwise, embedding
from tinyrvllm.kernels import step as steps
from tinyrvllm.kernels.launch import Launch, Span
from tinyrvllm.kernels.matmul import Matmul
from tinyrvllm.kernels.quant import Matrix
from tinyrvllm.runner.forward import Forward
from tinyrvllm.runner.step import Bucket


class Head:
    """Builds the launches that follow a body: the vocabulary projection, and argmax.

    fused, below: the body left the sums of squares of x that a folded norm needs.
    """

    def __init__(self, forward: Forward, max_samples: int) -> None:
        self.forward = forward
        self.max_samples = max_samples  # rows that scratch "logits" holds

    def logits(self, samples: int, gathered: bool, fused: bool) -> list[Launch]:
        """Rows of "x" -> "logits" [samples, vocab].

        gathered: the rows are those of the step's sample_rows; else the first `samples` of x.
        """
        scratch, hidden = self.forward.scratch, self.forward.config.hidden_size
        if not gathered:
            return self._project(scratch["x"], samples, fused)
        x = scratch["x"]
        rows_of_x = Matrix(x, GGMLQuantizationType.F32, x.nbytes // 4 // hidden, hidden)
        rows, picked = self.forward.step.spans["sample_rows"], scratch["gathered"]
        gather = embedding.launch(rows, rows_of_x, picked, samples)
        return [gather, *self._project(picked, samples, False)]

    def tokens(self, samples: int, gathered: bool, fused: bool) -> list[Launch]:
        """Rows of "x" -> "indices" and "flags" [samples], as `argmax.launches` gives them."""
        scratch = self.forward.scratch
        found = argmax.launches(
            scratch["logits"], scratch["winners"], scratch["indices"], scratch["flags"],
            samples, self.forward.config.vocab_size,
        )  # fmt: skip
        return [*self.logits(samples, gathered, fused), *found]

    def advance(self, bucket: Bucket, results: Span, fused: bool) -> list[Launch]:
        """One row for each sequence: "x" -> results, and the step buffer's next step."""
        forward, step = self.forward, self.forward.step
        spans = step.spans
        config, winners, launches = forward.config, forward.scratch["winners"], []
        chunks = argmax.chunks(config.vocab_size)
        for first in range(0, bucket.rows, self.max_samples):
            rows = min(self.max_samples, bucket.rows - first)
            x = forward.scratch["x"].tail(first * config.hidden_size * 4)
            launches += self._project(x, rows, fused, first)
            launches.append(
                argmax.chunk_winners(
                    forward.scratch["logits"], winners.tail(first * chunks * argmax.WINNER_BYTES),
                    rows, config.vocab_size,
                )
            )  # fmt: skip
        launches.append(
            steps.advance(
                winners, spans["token_ids"], spans["positions"], spans["context_lens"],
                spans["slots"], spans["block_tables"], results, bucket.rows, chunks,
                step.block_size, step.blocks(bucket),
            )
        )  # fmt: skip
        return launches

    def _project(self, x: Span, rows: int, fused: bool, first: int = 0) -> list[Launch]:
        """x [rows, hidden], from row `first` of "x" on if fused -> "logits" [rows, vocab]."""
        forward, config = self.forward, self.forward.config
        weight = forward.tensors.matrix(
            "token_embd.weight" if config.tied_output else "output.weight"
        )
        logits, launches = forward.scratch["logits"], []
        if fused:
            writer = f"blk.{config.num_layers - 1}.ffn_down.weight"
            normed = forward.folded(config.output_norm, writer, first)
        else:
            normed = {"x": forward.scratch["normed"]}
            launches.append(forward.norm(config.output_norm, x, normed["x"], rows))
        launches.append(forward.multiply(Matmul(weight=weight, y=logits, rows=rows, **normed)))
        if config.final_softcap is not None:
            count = rows * config.vocab_size
            launches.append(elementwise.softcap(logits, logits, count, config.final_softcap))
        return launches
