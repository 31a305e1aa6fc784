"""What a kernel asks of the machine: counted by the checking device, equal on every machine."""

from collections import defaultdict
from dataclasses import dataclass

from tinyrvllm.soft.cpu.access_log import DispatchLog

LINE_BYTES = 128  # of Apple's GPU: what one access of a simdgroup should fill


@dataclass(frozen=True)
class Cost:
    """Of one dispatch."""

    bytes_read: int  # from device memory, every access counted
    bytes_written: int
    threadgroup_bytes: int  # read from and written to threadgroup memory
    barriers: float  # of a threadgroup
    simd_operations: float  # of a simdgroup, matrix operations among them
    lines: float  # 128-byte lines that a simdgroup touches in one access, on average
    worst_lines: int
    worst_line: int  # of the source; 0 where no access needs more than it must


def cost(log: DispatchLog) -> Cost:
    """Counts what `access_log.record` saw."""
    device = [a for a in log.rows if a.memory == "device"]
    local = [a for a in log.rows if a.memory == "threadgroup"]
    group_threads = log.group[0] * log.group[1] * log.group[2]
    threads = log.grid[0] * log.grid[1] * log.grid[2]
    groups = -(-threads // group_threads)
    simdgroups = groups * -(-group_threads // 32)
    lines, worst, worst_line = _coalescing(log)
    return Cost(
        bytes_read=sum(a.size for a in device if a.verb == "read"),
        bytes_written=sum(a.size for a in device if a.verb != "read"),
        threadgroup_bytes=sum(a.size for a in local),
        barriers=log.barriers / groups,
        simd_operations=log.simd_operations / simdgroups,
        lines=lines,
        worst_lines=worst,
        worst_line=worst_line,
    )


def _coalescing(log: DispatchLog) -> tuple[float, int, int]:
    """(mean lines of an access, most lines of one, its source line or 0 if bytes explain it).

    The n-th access that each lane of a simdgroup makes at one place is one access of the simdgroup.
    """
    seen: dict[tuple, int] = defaultdict(int)
    together: dict[tuple, set[int]] = defaultdict(set)
    nbytes: dict[tuple, int] = defaultdict(int)
    for a in log.rows:
        if a.memory != "device":
            continue
        place = (a.line, a.file, a.verb, a.name)
        lane = (a.group, a.thread, *place)
        seen[lane] += 1
        key = (a.group, a.thread // 32, *place, seen[lane])
        nbytes[key] += a.size
        together[key] |= set(
            range(a.offset // LINE_BYTES, (a.offset + a.size - 1) // LINE_BYTES + 1)
        )
    if not together:
        return 0.0, 0, 0
    worst = max(together, key=lambda key: len(together[key]))
    most = len(together[worst])
    scattered = most > -(-nbytes[worst] // LINE_BYTES) + 1
    mean = sum(map(len, together.values())) / len(together)
    return mean, most, worst[2] if scattered else 0


def table(yours: Cost, ours: Cost, title: str) -> str:
    """The two side by side."""
    rows = [
        ("bytes read from device memory", yours.bytes_read, ours.bytes_read),
        ("bytes written", yours.bytes_written, ours.bytes_written),
        ("threadgroup memory: bytes moved", yours.threadgroup_bytes, ours.threadgroup_bytes),
        ("barriers a threadgroup", yours.barriers, ours.barriers),
        ("simd operations a simdgroup", yours.simd_operations, ours.simd_operations),
        ("128-byte lines an access", yours.lines, ours.lines),
    ]
    width = max(len(title) + 8, 34)
    text = [f"  {f'cost ({title})':{width}} {'yours':>10} {'ours':>10}"]
    text += [f"  {name:{width}} {_number(a):>10} {_number(b):>10}" for name, a, b in rows]
    if yours.worst_line and yours.worst_lines > ours.worst_lines:
        text.append(
            f"  line {yours.worst_line}: the 32 lanes of a simdgroup touch {yours.worst_lines} "
            f"lines of {LINE_BYTES} bytes at once; neighbouring lanes should read neighbours"
        )
    return "\n".join(text)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"
