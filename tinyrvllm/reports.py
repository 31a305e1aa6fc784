"""What `generate` prints on standard error: timings, costs, and how another kernel did."""

import inspect
import subprocess
import sys
from typing import TYPE_CHECKING

from tinyrvllm.errors import TinyrvllmError

if TYPE_CHECKING:
    from tinyrvllm.engine.llm import RequestOutput
    from tinyrvllm.runner.report import Report

    Run = tuple[list[RequestOutput], Report | None]


def timings(output: "RequestOutput") -> str:
    """Tokens, seconds and tokens per second of a request, and the process's peak memory."""
    prompt, generated = len(output.prompt_token_ids), len(output.token_ids)
    lines = [
        f"prompt tokens     {output.prompt_token_ids}",
        f"generated tokens  {output.token_ids}",
    ]
    if generated:
        first = output.first_token_seconds
        lines.append(f"prefill           {prompt} tokens, {first:.3f} s, {prompt / first:.1f} tok/s")
    if generated > 1:
        decode = output.total_seconds - output.first_token_seconds
        rate = (generated - 1) / decode
        lines.append(f"decode            {generated - 1} tokens, {decode:.3f} s, {rate:.1f} tok/s")
    lines.append(f"finish reason     {output.finish_reason or 'interrupted'}")
    if peak := peak_memory_bytes():
        empty = empty_process_bytes() / 1e6
        lines.append(f"peak memory       {peak / 1e6:.0f} MB (an empty process: {empty:.0f} MB)")
    return "\n".join(lines)


def costs(report: "Report") -> str:
    """What the last step, a decoded token, cost apart from time."""
    lines = (
        f"last step         {report.dispatches} dispatches in {report.phases} phases",
        f"device time       {report.microseconds:.0f} us, the median of all steps",
        f"bytes read        {report.weight_bytes:,} of weights, {report.kv_bytes:,} of KV cache",
        f"bytes written     {report.host_bytes:,} by the host, {report.allocations} allocations",
    )
    return "\n".join(lines)


def peak_memory_bytes() -> int | None:
    """The most memory this process has held, or None where the system does not say."""
    import sys

    if sys.platform == "linux":  # ru_maxrss counts the parent's memory too, before exec
        with open("/proc/self/status") as status:
            (line,) = (line for line in status if line.startswith("VmHWM"))
        return 1024 * int(line.split()[1])
    if sys.platform == "darwin":
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return None


def empty_process_bytes() -> int:
    """The same of a Python that does nothing else."""
    program = f"{inspect.getsource(peak_memory_bytes)}\nprint(peak_memory_bytes())"
    done = subprocess.run([sys.executable, "-S", "-c", program], capture_output=True, check=True)
    return int(done.stdout)


def kernel_comparison(
    name: str,
    theirs: "Run",
    ours: "Run",
) -> str:
    """Whether a reader's kernel gives the tokens of ours, and what each of them costs.

    Raises:
        TinyrvllmError: no step has run the kernel.
    """
    from tinyrvllm.benches.greedy import fnv1a

    (their_outputs, their_report), (our_outputs, our_report) = theirs, ours
    if their_report is None or our_report is None:
        raise TinyrvllmError("--kernel: this device runs no kernels")
    if name not in our_report.total_kernels:
        raise TinyrvllmError(
            f"--kernel: no step ran the kernel {name!r}, so yours was not tried; these ran: "
            f"{', '.join(sorted(our_report.total_kernels))}"
        )
    their_tokens = [output.token_ids for output in their_outputs]
    our_tokens = [output.token_ids for output in our_outputs]
    same = "equal" if their_tokens == our_tokens else "DIFFERENT"
    return (
        f"kernel {name}: tokens {same}, checksum {fnv1a(their_tokens)} (ours {fnv1a(our_tokens)}); "
        f"{their_report.total_kernels[name]} dispatches in {their_report.steps} steps, which took "
        f"{their_report.total_microseconds / 1e3:.1f} ms on the device "
        f"(ours {our_report.total_microseconds / 1e3:.1f}), the median step "
        f"{their_report.microseconds:.0f} us (ours {our_report.microseconds:.0f})"
    )
