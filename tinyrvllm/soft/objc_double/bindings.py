"""What a dispatch gets: pipeline, buffers, threadgroup memory; and what must be true of them."""

from dataclasses import dataclass, field

from .engine import Run, Size
from .metal_device import MTLBuffer
from .metal_library import MTLComputePipelineState
from .signatures import ObjCError

SLOTS = 31  # buffer and threadgroup arguments each
CONSTANT_ALIGNMENT = 4  # bytes, of offsets into constant memory (Metal feature set tables)


@dataclass
class Bindings:
    """What the next dispatch of an encoder, or one indirect command, gets."""

    pipeline: MTLComputePipelineState | None = None
    buffers: dict[int, tuple[MTLBuffer | None, int, int]] = field(default_factory=dict)
    threadgroup_memory: dict[int, int] = field(default_factory=dict)

    def bind(self, where: object, buffer: MTLBuffer | None, offset: int, slot: int) -> None:
        """Binds a buffer from an offset on. Raises ObjCError for a bad slot or offset."""
        if not 0 <= slot < SLOTS:
            raise ObjCError(f"{where}: buffer slot {slot}; there are slots 0 to {SLOTS - 1}")
        if buffer is None:
            self.buffers.pop(slot, None)
            return
        if offset >= buffer.nbytes:
            raise ObjCError(
                f"{where}: offset {offset} at slot {slot} is not inside {buffer}; were offset and "
                "index swapped?"
            )
        self.buffers[slot] = (buffer, buffer.address + offset, buffer.nbytes - offset)

    def set_threadgroup_memory(self, where: object, nbytes: int, index: int) -> None:
        """Sizes a [[threadgroup(index)]] argument. Raises ObjCError for a bad size."""
        if not 0 <= index < SLOTS:
            raise ObjCError(f"{where}: threadgroup argument {index}; there are 0 to {SLOTS - 1}")
        if nbytes % 16:
            raise ObjCError(
                f"{where}: {nbytes} bytes of threadgroup memory at index {index}; Metal wants a "
                "multiple of 16: round up"
            )
        self.threadgroup_memory[index] = nbytes

    def run(self, where: object, groups: Size, threads: Size, limit: int) -> Run:
        """One dispatch. Raises ObjCError for what Metal would reject, drop or crash on."""
        pipeline = self.pipeline
        if pipeline is None:
            raise ObjCError(f"{where}: dispatch with no pipeline; send setComputePipelineState:")
        count = threads[0] * threads[1] * threads[2]
        if not 0 < count <= pipeline.thread_limit:
            raise ObjCError(
                f"{where}, kernel {pipeline.label!r}: {threads} = {count} threads in a "
                f"threadgroup; this pipeline allows 1 to {pipeline.thread_limit} (Metal drops "
                "such a dispatch silently)"
            )
        total = pipeline.kernel.static_threadgroup_bytes
        buffers = {}
        for parameter in pipeline.params:
            slot = parameter.index
            if parameter.kind == "buffer":
                if slot not in self.buffers:
                    raise ObjCError(
                        f"{where}, kernel {pipeline.label!r}: argument {parameter.name!r} at "
                        f"buffer({slot}) is not bound; bind a buffer or bytes to that slot"
                    )
                buffer, address, nbytes = self.buffers[slot]
                if parameter.type.startswith("constant") and address % CONSTANT_ALIGNMENT:
                    raise ObjCError(
                        f"{where}, kernel {pipeline.label!r}: constant argument "
                        f"{parameter.name!r} at buffer({slot}) starts at byte "
                        f"{address - buffer.address if buffer else 0}; it must be a multiple of "
                        f"{CONSTANT_ALIGNMENT}"
                    )
                buffers[slot] = (address, nbytes)
            elif parameter.kind == "threadgroup":
                if slot not in self.threadgroup_memory:
                    raise ObjCError(
                        f"{where}, kernel {pipeline.label!r}: threadgroup({slot}) "
                        f"{parameter.name!r} has no length; set one"
                    )
                total += self.threadgroup_memory[slot]
        if total > limit:
            raise ObjCError(
                f"{where}, kernel {pipeline.label!r}: {total} bytes of threadgroup memory, static "
                f"and dynamic; the device has {limit}"
            )
        grid = (groups[0] * threads[0], groups[1] * threads[1], groups[2] * threads[2])
        memory = dict(self.threadgroup_memory)
        return Run(pipeline.kernel, pipeline.label, buffers, grid, threads, memory)
