"""MSL on this CPU: compilation with a cache, fibers, command lists on OS threads.

Read in this order: library.py (what a host asks for), build.py and compiler.py (how machine code
is made), entry.h, runtime.h and fiber.h (how a GPU thread lives on a stack), engine.cpp (how a
command list runs), execute.py (how Python starts one).

| system | what was run |
|---|---|
| Linux x86-64 | everything |
| Linux aarch64 | kernels and engine under qemu, equal bits (tests/soft/test_cpu_other_machines.py) |
| Windows x86-64 | kernels and engine under wine, equal bits (the same tests); Python not |
| macOS arm64 | compiled and linked from Linux; not run |
"""
