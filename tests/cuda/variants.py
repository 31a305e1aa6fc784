"""Every variant of every kernel that the shape table runs: (shader, kernel, function constants)."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tinyrvllm.kernels.cases import Case, prepare
from tinyrvllm.mtl.device import Device
from tinyrvllm.soft.objc_double import Memory, metal
from tinyrvllm.soft.objc_double.engine import pages

Variant = tuple[str, str, tuple[tuple[str, Any], ...]]
NOT_HERE = ("gemm_tensor",)  # needs Metal 4's tensors


class NoEngine:
    """Buffers, and nothing that runs."""

    description = "nothing"

    def allocate(self, nbytes: int) -> Memory:
        return pages(nbytes)


def of(table: Sequence[Case]) -> list[Variant]:
    found: dict[Variant, None] = {}
    with Device(metal(NoEngine())) as device, np.errstate(over="ignore"):  # type: ignore[arg-type]
        for case in table:
            if case.kernel not in NOT_HERE:
                for launch in prepare(case, device, np.random.default_rng(0)).launches:
                    found[launch.shader, launch.kernel, launch.constants] = None
    return list(found)
