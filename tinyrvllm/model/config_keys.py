"""Hyper-parameters from metadata keys, with the checks that keep nonsense out."""

import math
from typing import Final

import numpy as np

from tinyrvllm.model.gguf_file import GGUFFile

MAX_INT: Final = (1 << 31) - 1  # sizes and positions are int32 on every device


class Keys:
    """The keys of one architecture, read with the checks that a hyper-parameter needs."""

    def __init__(self, file: GGUFFile, arch: str) -> None:
        self.file = file
        self.arch = arch

    def positive(self, name: str, default: int | None = None, most: int = MAX_INT) -> int:
        """An integer from 1 to `most`; an array is taken if all layers have the same."""
        key = f"{self.arch}.{name}"
        if isinstance(values := self.file.metadata.get(key), np.ndarray):
            is_integer = np.issubdtype(values.dtype, np.integer)
            if not is_integer or not len(values) or (values != values[0]).any():
                raise self.file.error(
                    f"the key {key!r} must be one integer for all layers, found {values.dtype} "
                    f"{str(values)[:40]}"
                )
            value = int(values[0])
        elif default is None:
            value = self.file.get(key, int)
        else:
            value = self.file.get(key, int, default)
        if not 1 <= value <= most:
            raise self.file.error(f"the key {key!r} must be from 1 to {most}, found {value}")
        return value

    def per_layer(self, name: str, num_layers: int, default: int) -> list[int]:
        """Integers of at least 0, one for each layer, from an array or one number for all."""
        key = f"{self.arch}.{name}"
        values = self.file.metadata.get(key)
        if not isinstance(values, np.ndarray):
            return [self.positive(name, default)] * num_layers
        is_integer = np.issubdtype(values.dtype, np.integer)
        if not is_integer or len(values) != num_layers or values.min() < 0:
            raise self.file.error(
                f"the key {key!r} must hold {num_layers} integers of at least 0, one for each "
                f"layer; found {len(values)} of type {values.dtype}"
            )
        return values.tolist()

    def real(self, name: str, default: float | None = None) -> float:
        """A finite number above 0."""
        key = f"{self.arch}.{name}"
        value = self.file.get(key, float) if default is None else self.file.get(key, float, default)
        if not 0 < value < math.inf:
            raise self.file.error(f"the key {key!r} must be finite and above 0, found {value}")
        return value

    def softcap(self, name: str, default: float) -> float | None:
        """A finite number above 0; 0 stands for no cap."""
        if self.file.get(f"{self.arch}.{name}", float, default) == 0:
            return None
        return self.real(name, default)
