"""The model on a Metal device: one command buffer a step, replayed from recorded programs."""

from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import closing
from itertools import count

import numpy as np

from tinyrvllm.errors import TinyrvllmError
from tinyrvllm.kernels import conv, gemm_tensor
from tinyrvllm.kernels.kv_cache import KvLayout
from tinyrvllm.kernels.launch import Launch, Span, encode, whole
from tinyrvllm.kernels.step import RESULT_BYTES
from tinyrvllm.model import Model
from tinyrvllm.mtl import Commands, Device
from tinyrvllm.mtl.replay import ResidencySet
from tinyrvllm.runner.batch import Batch, slice_batch
from tinyrvllm.runner.forward import Forward, can_fuse
from tinyrvllm.runner.head import Head
from tinyrvllm.runner.options import Options
from tinyrvllm.runner.program import Program
from tinyrvllm.runner.report import Report, Tally, Timeline, kv_bytes, weight_bytes
from tinyrvllm.runner.scratch import allocate, decoding_rows, max_samples, plan
from tinyrvllm.runner.step import Bucket, StepBuffer, context_bucket, padded_size
from tinyrvllm.runner.tensors import DeviceTensors


class MetalRunner:
    """Runs batches through the kernels, keeping keys and values in `num_blocks` blocks.

    max_seqs: sequences that may hold a convolution state at a time (LFM2).
    max_context: tokens of the longest sequence; whole blocks. Default: it may have all of them.
    """

    def __init__(
        self, model: Model, device: Device, num_blocks: int, block_size: int = 16,
        max_seqs: int = 64, options: Options | None = None, max_context: int | None = None,
    ) -> None:  # fmt: skip
        self.config = config = model.config
        self.device = device
        self.options = options = options or Options()
        if options.tensor_ops and (reason := gemm_tensor.why_not(device)):
            raise TinyrvllmError(f"--tensor-ops: {reason}")
        self.max_context = max_context = max_context or num_blocks * block_size
        self.layout = layout = KvLayout(
            num_blocks, block_size, config.num_kv_heads, config.head_dim, options.kv_f32
        )
        tensors = DeviceTensors(model, device, arranged=options.simdgroups > 0)
        self.max_rows, sizes = plan(config, max_context, block_size, tensors.gate_and_up_differ())
        self.max_samples = max_samples(config)
        self.step = StepBuffer(device, self.max_rows, max_context, block_size)
        self.scratch = allocate(device, sizes)
        # Two, so that one can be read while the next step writes the other.
        self.results = [device.buffer(RESULT_BYTES * self.max_rows, f"results {i}") for i in (0, 1)]
        pools = self._pools(conv.state_bytes(max_seqs, config.hidden_size, config.conv_kernel))
        self.forward = Forward(config, tensors, self.step, self.scratch, layout, pools, options)
        self.head = Head(self.forward, self.max_samples)
        self.last_programs: list[Program] = []  # of the last command buffer, for reports
        self._programs: dict[tuple[object, ...], Program] = {}
        self._in_flight: list[Commands] = []
        self._batches = count()
        self._current = -1  # number of the batch that the step buffer holds
        self._tally = Tally()
        self._context_lens = np.zeros(0, np.int32)  # of the last step
        self._buffers_made = self.allocations = 0  # until the last step, and in it
        spans = [*tensors.spans.values(), *self.scratch.values(), *sum(pools, ())]
        buffers = {span.buffer: None for span in spans}  # each once, in order
        self._residency = (
            ResidencySet(device, [*buffers, self.step.buffer, *self.results])
            if device.limits.os_version >= (15, 0)
            else None
        )

    def _pools(self, state_bytes: int) -> list[tuple[Span, ...]]:
        """For each layer (keys, values), or (state,) of a short convolution."""
        nbytes = self.layout.nbytes
        pools: list[tuple[Span, ...]] = []
        for layer, kind in enumerate(self.config.layer_kinds):
            if kind == "attention":
                buffer = self.device.buffer(2 * nbytes, f"layer {layer} keys and values")
                pools.append((Span(buffer, 0, nbytes), Span(buffer, nbytes, nbytes)))
            else:
                pools.append((whole(self.device.buffer(state_bytes, f"layer {layer} state")),))
        return pools

    # ---- one batch

    def run(self, batch: Batch) -> np.ndarray:
        """Compute one step: logits of the rows `batch.sample_rows`, float32 [R, vocab].

        A step of more rows than scratch holds runs as several command buffers.
        """
        logits = np.empty((len(batch.sample_rows), self.config.vocab_size), np.float32)
        for wanted in self._sampled(batch, "logits"):
            logits[wanted] = self._view("logits", np.float32, len(wanted), self.config.vocab_size)
        return logits

    def greedy(self, batch: Batch, steps: int) -> Generator[tuple[np.ndarray, np.ndarray]]:
        """The likeliest token of each sampled row, then of each sequence's next steps.

        Yields (token ids, flags), int32 [R] each: see argmax.launches. For more than one step the
        batch samples the last row of each sequence, whose block table must have room for `steps`
        tokens more. A decode step is committed before the one before it is waited for: a reader
        that stops early has had at most one step computed in vain.
        """
        while steps > 0:
            if steps == 1 or not self._can_chain(batch):
                done = 1
                found = self._likeliest(batch)
                yield found
            else:
                bucket = Bucket.of(batch, self.max_context)
                done = min(steps, bucket.context - int(batch.context_lens.max()) + 1)
                with closing(self._chain(batch, bucket, done)) as chain:  # whoever stops early
                    for found in chain:
                        yield found
            steps -= done
            if steps:
                batch = batch.after(found[0], self.step.block_size, done)

    def _likeliest(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        found = np.empty((2, len(batch.sample_rows)), np.int32)
        for wanted in self._sampled(batch, "tokens"):
            for values, name in zip(found, ("indices", "flags"), strict=True):
                values[wanted] = self._view(name, np.int32, len(wanted))
        return found[0], found[1]

    def _view(self, name: str, dtype: type, *shape: int) -> np.ndarray:
        """Scratch where it lies, as an array."""
        span = self.scratch[name]
        return span.buffer.numpy(dtype, shape, span.offset)

    def _sampled(self, batch: Batch, kind: str) -> Iterator[np.ndarray]:
        """Runs a batch; yields which of its sample_rows scratch now has the results of."""
        at_once = self._rows_at_once(batch)
        for first in range(0, batch.num_tokens, at_once):
            part, wanted = slice_batch(batch, first, min(first + at_once, batch.num_tokens))
            bucket = Bucket.of(part, self.max_context)
            self._write(part, bucket)
            programs = [self.body(bucket)]
            for some in range(0, max(1, len(wanted)), self.max_samples):
                rows = part.sample_rows[some : some + self.max_samples]
                if len(rows):
                    gathered = some > 0 or not np.array_equal(rows, np.arange(len(rows)))
                    padded = min(padded_size(len(rows)), self.max_samples)
                    self.step.put_samples(rows, padded)
                    programs.append(self._after_body(kind, bucket, padded, gathered))
                self._finish(self._submit(programs))
                programs = []
                yield wanted[some : some + self.max_samples]

    def state(self, slot: int) -> list[np.ndarray]:
        """A copy of a sequence's convolution state."""
        return [states[slot].copy() for states in self._states()]

    def set_state(self, slot: int, state: list[np.ndarray]) -> None:
        """Lets a sequence go on from a state that `state` has returned."""
        for states, saved in zip(self._states(), state, strict=True):
            states[slot] = saved

    def _states(self) -> list[np.ndarray]:
        """[max_seqs, taps - 1, hidden] of each short convolution."""
        self._settle()
        shape = -1, self.config.conv_kernel - 1, self.config.hidden_size
        pools = (pool[0].buffer for pool in self.forward.pools if len(pool) == 1)
        return [buffer.numpy(np.float32).reshape(shape) for buffer in pools]

    # ---- decode steps that follow one another on the device

    def _can_chain(self, batch: Batch) -> bool:
        """Whether each sequence has one row, which is sampled, and all fit in one step."""
        rows = np.arange(batch.num_seqs)
        return (
            batch.num_tokens == batch.num_seqs <= self._rows_at_once(batch)
            and np.array_equal(batch.sample_rows, rows)
        )

    def _chain(
        self, batch: Batch, bucket: Bucket, steps: int
    ) -> Generator[tuple[np.ndarray, np.ndarray]]:
        """`steps` greedy decode steps inside one bucket."""
        self._write(batch, bucket)
        mine = self._current
        body = self.body(bucket)
        advances = [self._after_body("advance", bucket, slot) for slot in (0, 1)]
        running = self._submit([body, advances[0]])
        try:
            for number in range(steps):
                following = number + 1 < steps
                if following:
                    if self._current != mine:
                        raise TinyrvllmError(
                            "another batch has run since: finish or close one stream of tokens "
                            "before you start the next"
                        )
                    slot = (number + 1) % 2
                    upcoming = self._submit([body, advances[slot]])
                self._finish(running)
                results = self.results[number % 2].numpy(np.int32, (batch.num_seqs, 2)).copy()
                yield results[:, 0], results[:, 1]
                if following:
                    running = upcoming
                    self.step.bytes_written = 0
                    self._context_lens = self._context_lens + 1
        finally:
            self._settle()

    # ---- costs

    def report(self) -> Report:
        """What the last step cost."""
        programs = self.last_programs
        launches = [launch for program in programs for launch in program.launches]
        file = {span.buffer for span in self.forward.tensors.spans.values()}
        return Report(
            dispatches=len(launches),
            phases=sum(len(program.phases) for program in programs),
            weight_bytes=weight_bytes(programs, file),
            kv_bytes=kv_bytes(self.config, self.layout, self._context_lens),
            host_bytes=self.step.bytes_written,
            allocations=self.allocations,
            microseconds=1e6 * self._tally.median,
            kernels=Counter(launch.kernel for launch in launches),
            steps=self._tally.steps,
            total_microseconds=1e6 * self._tally.seconds,
            total_kernels=self._tally.kernels,
        )

    def time_dispatches(self) -> None:
        """From now on each dispatch runs in a command buffer of its own; see `dispatches`."""
        self.device.profile = Timeline()

    def dispatches(self) -> list[tuple[str, float, float]]:
        """(kernel, start by time.perf_counter, seconds on the device) since the last call."""
        timeline = self.device.profile
        return timeline.take() if isinstance(timeline, Timeline) else []

    # ---- programs and command buffers

    def body(self, bucket: Bucket) -> Program:
        """The layers, for steps of a bucket."""
        if (bucket,) not in self._programs:
            self._programs[bucket,] = self._record(self.forward.body(bucket), f"{bucket.rows} rows")
        return self._programs[bucket,]

    def _after_body(self, kind: str, bucket: Bucket, *detail: int) -> Program:
        """What follows the layers: "logits" or "tokens" (samples, gathered), "advance" (slot)."""
        fused = can_fuse(self.config, self.options, bucket.rows)
        key = (kind, bucket if kind == "advance" else fused, *detail)
        if key not in self._programs:
            if kind == "advance":
                launches = self.head.advance(bucket, whole(self.results[detail[0]]), fused)
            else:
                build = self.head.logits if kind == "logits" else self.head.tokens
                samples, gathered = detail
                launches = build(samples, bool(gathered), fused)
            self._programs[key] = self._record(launches, kind)
        return self._programs[key]

    def _record(self, launches: list[Launch], label: str) -> Program:
        return Program(self.device, launches, label, self.options)

    def _write(self, batch: Batch, bucket: Bucket) -> None:
        self._settle()  # a stream that was left alone may have a step in flight
        self._current = next(self._batches)
        self._context_lens = batch.context_lens
        self.step.write(batch, bucket)

    def _submit(self, programs: list[Program]) -> Commands:
        """Commits programs, one after the other, as one command buffer."""
        device, self.last_programs = self.device, programs
        commands = device.commands("step")
        with commands.encoder(concurrent=True) as encoder:
            for program in programs:
                if device.profile is None:
                    program.commands.execute(encoder)
                else:  # the profile times each dispatch in a command buffer of its own
                    for launch in program.launches:
                        encode(launch, encoder, device)
        commands.commit()
        self.allocations = device.buffers_made - self._buffers_made
        self._buffers_made = device.buffers_made
        self._in_flight.append(commands)
        self._tally.runs.update(programs)
        return commands

    def _finish(self, commands: Commands) -> None:
        if commands in self._in_flight:
            self._in_flight.remove(commands)
            commands.wait()
            self._tally.add(commands.gpu_seconds)

    def _settle(self) -> None:
        for commands in list(self._in_flight):
            self._finish(commands)

    def _rows_at_once(self, batch: Batch) -> int:
        context = context_bucket(batch, self.max_context)
        return min(self.max_rows, decoding_rows(self.config, context))
