"""Address space for the fibers of one OS thread: 128 MiB at a multiple of 128 MiB (fiber.h)."""

import ctypes
import mmap
import sys

SIZE = 128 << 20


def allocate() -> tuple[object, int]:
    """(what keeps it alive, its address). Memory is used only where a stack has been touched."""
    if sys.platform == "win32":
        return _windows()
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    memory = mmap.mmap(-1, 2 * SIZE, flags=flags)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)  # 32 stacks fit one page of 2 MiB
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    return memory, (base + SIZE - 1) & ~(SIZE - 1)


def _windows() -> tuple[object, int]:
    """Reserves twice the size to find an aligned address, then commits just the half used."""
    kernel32 = ctypes.WinDLL("kernel32")  # type: ignore[attr-defined]
    reserve, commit, read_write, release = 0x2000, 0x1000, 0x04, 0x8000
    kernel32.VirtualAlloc.restype = ctypes.c_void_p
    kernel32.VirtualAlloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint, ctypes.c_uint]
    kernel32.VirtualFree.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint]
    for _ in range(8):  # another thread may take the address between the two calls
        probe = kernel32.VirtualAlloc(None, 2 * SIZE, reserve, read_write)
        if not probe:
            break
        kernel32.VirtualFree(probe, 0, release)
        aligned = (probe + SIZE - 1) & ~(SIZE - 1)
        if kernel32.VirtualAlloc(aligned, SIZE, reserve | commit, read_write):
            return None, aligned
    raise MemoryError("VirtualAlloc gave no 128 MiB for the software device's stacks")
