"""A model's tensors where the GPU sees them: in the mapped file, with no copy."""

from gguf import GGMLQuantizationType

from tinyrvllm.errors import TinyrvllmError
from tinyrvllm.kernels.launch import Span, whole
from tinyrvllm.kernels.quant import WEIGHT_TYPES, Matrix
from tinyrvllm.kernels.rope import turns
from tinyrvllm.model import Model
from tinyrvllm.model.dequantize import dequantize
from tinyrvllm.model.gguf_header import TensorInfo
from tinyrvllm.mtl import Device

PAGE = 16384  # bytes; Apple silicon's, and a multiple of the others'


class DeviceTensors:
    """Spans of one buffer over the whole file, or of overlapping ones where it is too long."""

    def __init__(self, model: Model, device: Device) -> None:
        limit = device.limits.recommended_working_set
        nbytes = sum(tensor.nbytes for tensor in model.file.tensors.values())
        if limit and nbytes > limit:
            raise TinyrvllmError(
                f"the model's tensors take {nbytes:,} bytes and this device "
                f"recommends a working set of at most {limit:,}: take a smaller quantisation"
            )
        self.model = model
        self.device = device
        self.spans = _spans(model, device)
        self._made: dict[object, Span] = {}  # small tensors that the kernels need in another form

    def matrix(self, name: str) -> Matrix:
        """A weight matrix, as the file has it."""
        tensor = self.model.file.tensors[name]
        if tensor.type not in WEIGHT_TYPES:
            supported = ", ".join(kind.name for kind in WEIGHT_TYPES)
            raise TinyrvllmError(
                f"tensor {name!r} is of type {tensor.type.name}; the kernels multiply {supported}: "
                "use --device cpu, or another quantisation"
            )
        outputs, inputs = tensor.shape
        return Matrix(self.spans[name], tensor.type, outputs, inputs)

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
        names = [name for name in self.spans if name.endswith(".ffn_gate.weight")]
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
    """Each tensor inside a view of the file; a view starts on a page and holds whole tensors."""
    longest = device.limits.max_buffer_length
    file = model.file.memory
    tensors = sorted(model.file.tensors.values(), key=lambda tensor: tensor.offset)
    spans: dict[str, Span] = {}
    start, buffer = 0, None
    for number, tensor in enumerate(tensors):
        end = tensor.offset + tensor.nbytes
        if buffer is None or end > start + buffer.nbytes:
            start = tensor.offset // PAGE * PAGE
            reach = _reach(tensors[number:], start, longest, len(file))
            if end > reach:
                raise TinyrvllmError(
                    f"tensor {tensor.name!r} has {tensor.nbytes:,} bytes, more than this device's "
                    f"longest buffer of {longest:,}"
                )
            buffer = device.wrap(file[start:reach], f"{model.file.path.name} from {start}")
        spans[tensor.name] = Span(buffer, tensor.offset - start, tensor.nbytes)
    return spans


def _reach(tensors: list[TensorInfo], start: int, longest: int, size: int) -> int:
    """Where a view from `start` ends: after the last tensor that fits whole."""
    end = start
    for tensor in tensors:
        if tensor.offset + tensor.nbytes - start > longest:
            break
        end = tensor.offset + tensor.nbytes
    return min(end, size)

