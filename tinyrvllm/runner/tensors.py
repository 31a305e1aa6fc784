"""A model's tensors where the GPU sees them: in the mapped file, with no copy.

A GPU of many cores, which has memory of its own, gets copies in an order that suits it.
"""

import math
from collections.abc import Iterator
from itertools import accumulate

from gguf import GGMLQuantizationType

from tinyrvllm.errors import TinyrvllmError
from tinyrvllm.kernels import arrange
from tinyrvllm.kernels.launch import Span, run, whole
from tinyrvllm.kernels.quant import WEIGHT_TYPES, Matrix, can_be_apart
from tinyrvllm.kernels.rope import turns
from tinyrvllm.model import Model
from tinyrvllm.model.dequantize import dequantize
from tinyrvllm.model.gguf_header import TensorInfo
from tinyrvllm.mtl import Device

PAGE = 16384  # bytes; Apple silicon's, and a multiple of the others'
ALIGNMENT = 256  # bytes, of a tensor's copy
WINDOW = 256 << 20  # bytes of the file beside the copies, or one tensor that is larger


class DeviceTensors:
    """Spans of one buffer over the whole file, or of overlapping ones where it is too long.

    arranged: copies instead, if the file has weights that gain by it (kernels/arrange.py).
    """

    def __init__(self, model: Model, device: Device, arranged: bool = False) -> None:
        limit = device.limits.recommended_working_set
        nbytes = sum(tensor.nbytes for tensor in model.file.tensors.values())
        if limit and nbytes > limit:
            raise TinyrvllmError(
                f"the model's tensors take {nbytes:,} bytes and this device "
                f"recommends a working set of at most {limit:,}: take a smaller quantisation"
            )
        self.model = model
        self.device = device
        self.arranged = (
            arranged
            and nbytes + ALIGNMENT * len(model.file.tensors) <= device.limits.max_buffer_length
            and any(can_be_apart(t.type, t.shape[-1]) for t in model.file.tensors.values())
        )
        self.spans = _copies(model, device) if self.arranged else _spans(model, device)
        self._made: dict[object, Span] = {}  # small tensors that the kernels need in another form

    def matrix(self, name: str) -> Matrix:
        """A weight matrix."""
        tensor = self.model.file.tensors[name]
        if tensor.type not in WEIGHT_TYPES:
            supported = ", ".join(kind.name for kind in WEIGHT_TYPES)
            raise TinyrvllmError(
                f"tensor {name!r} is of type {tensor.type.name}; the kernels multiply {supported}: "
                "use --device cpu, or another quantisation"
            )
        outputs, inputs = tensor.shape
        apart = self.arranged and can_be_apart(tensor.type, inputs)
        return Matrix(self.spans[name], tensor.type, outputs, inputs, apart=apart)

    def vector(self, name: str) -> Span:
        """A norm's weight or a bias, as float."""
        if self.model.file.tensors[name].type is GGMLQuantizationType.F32:
            return self.spans[name]
        if name not in self._made:
            data, kind, _ = self.model.weights.raw(name)
            values = dequantize(data, kind).reshape(-1)
            self._made[name] = whole(self.device.from_numpy(values, name))
        return self._made[name]

    def gate_and_up_differ(self) -> bool:
        """Whether some layer's two are of different types: no kernel multiplies such a pair."""
        names = [name for name in self.model.file.tensors if name.endswith(".ffn_gate.weight")]
        return any(
            self.matrix(name).kind != self.matrix(name.replace("gate", "up")).kind for name in names
        )

    def turns(self, layer: int) -> Span:
        """RoPE's frequencies of a layer, as the kernel wants them; layers with the same share."""
        frequencies = self.model.config.rope_inv_freq(layer)
        key = frequencies.tobytes()
        if key not in self._made:
            self._made[key] = whole(self.device.from_numpy(turns(frequencies), "rope turns"))
        return self._made[key]


def _spans(model: Model, device: Device) -> dict[str, Span]:
    """Each tensor inside a view of the file."""
    name, spans = model.file.path.name, {}
    every = list(model.file.tensors.values())
    for start, end, tensors in _views(model, every, device.limits.max_buffer_length):
        buffer = device.wrap(model.file.memory[start:end], f"{name} from {start}")
        for tensor in tensors:
            spans[tensor.name] = Span(buffer, tensor.offset - start, tensor.nbytes)
    return spans


def _copies(model: Model, device: Device) -> dict[str, Span]:
    """Each tensor in memory that is the device's own, put in order by the device."""
    known = [t for t in model.file.tensors.values() if t.type in WEIGHT_TYPES]
    sizes = [-(-tensor.nbytes // ALIGNMENT) * ALIGNMENT for tensor in known]
    buffer = device.buffer(sum(sizes), f"{model.file.path.name}, arranged")
    places = accumulate(sizes, initial=0)
    spans = {t.name: Span(buffer, next(places), t.nbytes) for t in known}
    longest = min(max(WINDOW, max(sizes) + PAGE), device.limits.max_buffer_length)
    for start, end, tensors in _views(model, known, longest):
        label = f"{model.file.path.name} from {start}, to be arranged"
        with device.wrap(model.file.memory[start:end], label) as part:
            launches = [
                arrange.launch(
                    Span(part, t.offset - start, t.nbytes), spans[t.name],
                    t.type, math.prod(t.shape[:-1]), t.shape[-1],
                )
                for t in tensors
            ]  # fmt: skip
            run(device, *launches)
    return spans


def _views(
    model: Model, wanted: list[TensorInfo], longest: int
) -> Iterator[tuple[int, int, list[TensorInfo]]]:
    """Parts of the file, (start, end, tensors): they start on pages and hold their tensors whole."""
    tensors = sorted(wanted, key=lambda tensor: tensor.offset)
    while tensors:
        start = tensors[0].offset // PAGE * PAGE
        end = _reach(tensors, start, longest, len(model.file.memory))
        inside = [t for t in tensors if t.offset + t.nbytes <= end]
        if not inside:
            raise TinyrvllmError(
                f"tensor {tensors[0].name!r} has {tensors[0].nbytes:,} bytes, more than this "
                f"device's longest buffer of {longest:,}"
            )
        yield start, end, inside
        del tensors[: len(inside)]


def _reach(tensors: list[TensorInfo], start: int, longest: int, size: int) -> int:
    """Where a view from `start` ends: after the last tensor that fits whole."""
    end = start
    for tensor in tensors:
        if tensor.offset + tensor.nbytes - start > longest:
            break
        end = tensor.offset + tensor.nbytes
    return min(end, size)

