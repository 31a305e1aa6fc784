"""The model on a Metal device: one command buffer a step, replayed from a recorded program."""

import numpy as np

from tinyrvllm.kernels import conv
from tinyrvllm.kernels.kv_cache import KvLayout
from tinyrvllm.kernels.launch import Span, encode, whole
from tinyrvllm.model import Model
from tinyrvllm.mtl import Device
from tinyrvllm.runner.batch import Batch
from tinyrvllm.runner.forward import Forward, Options, can_fuse, scratch_sizes
from tinyrvllm.runner.program import Program
from tinyrvllm.runner.step import MAX_ROWS, Bucket, StepBuffer, padded_size
from tinyrvllm.runner.tensors import DeviceTensors

LOGITS_BYTES = 8 << 20  # of scratch for logits: how many rows are sampled at once follows
MAX_SAMPLES = 32


class MetalRunner:
    """Runs batches through the kernels, keeping keys and values in `num_blocks` blocks.

    Args:
        max_seqs: sequences that may hold a convolution state at a time (LFM2).
        kv_f32: keep the cache in float32 instead of half.
        indirect: replay by indirect command buffers.
    """

    def __init__(
        self,
        model: Model,
        device: Device,
        num_blocks: int,
        block_size: int = 16,
        max_seqs: int = 64,
        kv_f32: bool = False,
        indirect: bool = False,
        options: Options | None = None,
    ) -> None:
        config = model.config
        self.config = config
        self.device = device
        self.indirect = indirect
        self.options = options or Options()
        self.max_samples = max(1, min(MAX_SAMPLES, LOGITS_BYTES // (4 * config.vocab_size)))
        self.max_context = max_context = num_blocks * block_size
        layout = KvLayout(num_blocks, block_size, config.num_kv_heads, config.head_dim, kv_f32)
        self.step = StepBuffer(device, max_context, block_size)
        sizes = scratch_sizes(config, layout, MAX_ROWS, self.max_samples, max_context)
        self.scratch_buffer = device.buffer(sum(sizes.values()), "scratch")
        self.scratch: dict[str, Span] = {}
        offset = 0
        for name, nbytes in sizes.items():
            self.scratch[name] = Span(self.scratch_buffer, offset, nbytes)
            offset += nbytes
        state_bytes = conv.state_bytes(max_seqs, config.hidden_size, config.conv_kernel)
        pools: list[tuple[Span, ...]] = []
        for layer, kind in enumerate(config.layer_kinds):
            if kind == "attention":
                buffer = device.buffer(2 * layout.nbytes, f"layer {layer} keys and values")
                keys = Span(buffer, 0, layout.nbytes)
                pools.append((keys, Span(buffer, layout.nbytes, layout.nbytes)))
            else:
                pools.append((whole(device.buffer(state_bytes, f"layer {layer} state")),))
        tensors = DeviceTensors(model, device)
        self.forward = Forward(
            config, tensors, self.step, self.scratch, layout, pools, self.options
        )
        self.last_programs: list[Program] = []  # of the last command buffer, for reports
        self._programs: dict[tuple[object, ...], Program] = {}

    def run(self, batch: Batch) -> np.ndarray:
        """Compute one step: logits of the rows `batch.sample_rows`, float32 [R, vocab].

        Steps of more than MAX_ROWS rows run as several command buffers.
        """
        logits = np.empty((len(batch.sample_rows), self.config.vocab_size), np.float32)
        for first in range(0, batch.num_tokens, MAX_ROWS):
            part, wanted = slice_batch(batch, first, min(first + MAX_ROWS, batch.num_tokens))
            self._run_part(part, wanted, logits)
        return logits

    def _run_part(self, batch: Batch, wanted: np.ndarray, logits: np.ndarray) -> None:
        """Runs up to MAX_ROWS rows; `wanted` says which rows of `logits` they give."""
        bucket = Bucket.of(batch, self.max_context)
        self.step.write(batch, bucket)
        programs = [self.body(bucket)]
        samples = batch.sample_rows
        for first in range(0, max(1, len(samples)), self.max_samples):
            rows = samples[first : first + self.max_samples]
            if len(rows):
                in_order = first == 0 and np.array_equal(rows, np.arange(len(rows)))
                padded = min(padded_size(len(rows)), self.max_samples)
                self.step.put_samples(rows, padded)
                programs.append(self.head(padded, not in_order, bucket))
            self._execute(programs)
            programs = []
            found = self.scratch_buffer.numpy(
                np.float32, (len(rows), self.config.vocab_size), self.scratch["logits"].offset
            )
            logits[wanted[first : first + self.max_samples]] = found

    def body(self, bucket: Bucket) -> Program:
        """The layers, for steps of a bucket."""
        if (bucket,) not in self._programs:
            launches = self.forward.body(bucket)
            label = f"{bucket.rows} rows"
            self._programs[bucket,] = Program(self.device, launches, label, self.indirect)
        return self._programs[bucket,]

    def head(self, samples: int, gathered: bool, bucket: Bucket) -> Program:
        """The vocabulary projection and argmax of `samples` rows."""
        fused = can_fuse(self.config, self.options, bucket.rows)
        key = (samples, gathered, fused)
        if key not in self._programs:
            launches = self.forward.head(*key)
            self._programs[key] = Program(self.device, launches, f"head {key}", self.indirect)
        return self._programs[key]

    def _execute(self, programs: list[Program]) -> None:
        device, self.last_programs = self.device, programs
        with device.commands("step") as commands, commands.encoder(concurrent=True) as encoder:
            for program in programs:
                if device.profile is None:
                    program.commands.execute(encoder)
                else:  # the profile times each dispatch in a command buffer of its own
                    for launch in program.launches:
                        encode(launch, encoder, device)


def slice_batch(batch: Batch, first: int, end: int) -> tuple[Batch, np.ndarray]:
    """Rows first:end of a batch as a batch, and which of `batch.sample_rows` they hold."""
    if (first, end) == (0, batch.num_tokens):
        return batch, np.arange(len(batch.sample_rows))
    starts = np.clip(batch.query_start, first, end)
    kept = np.flatnonzero(np.diff(starts) > 0)
    ends = np.append(starts[kept], end)
    wanted = np.flatnonzero((batch.sample_rows >= first) & (batch.sample_rows < end))
    rows = slice(first, end)
    part = Batch(
        token_ids=batch.token_ids[rows],
        positions=batch.positions[rows],
        slot_mapping=batch.slot_mapping[rows],
        block_tables=batch.block_tables[kept],
        context_lens=batch.positions[ends[1:] - 1] + 1,
        query_start=ends - first,
        sample_rows=batch.sample_rows[wanted] - first,
        state_slots=batch.state_slots[kept],
    )
    return part, wanted

