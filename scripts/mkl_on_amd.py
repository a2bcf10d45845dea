"""Lets MKL use AVX-512 on AMD processors that have it: matrix products on one core in half the time or less.

    python scripts/mkl_on_amd.py             # for every Python of this environment from now on; `make install` does it
    python scripts/mkl_on_amd.py --remove
    python scripts/mkl_on_amd.py --compare   # products with it and without it, side by side

PyTorch computes matrix products with MKL, which takes its AVX-512 kernels on Intel processors alone. It asks
`mkl_serv_intel_cpu_true` which processor it runs on; a library of one function that says yes, loaded before PyTorch,
is asked instead. Results agree to rounding, but not to the bit. Nothing is done on other processors, or where there is
no C compiler.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

SOURCE = "int mkl_serv_intel_cpu_true(void) { return 1; }\n"
LIBRARY = Path(sys.prefix) / "lib" / "mkl_on_amd.so"
HOOK = Path(sysconfig.get_path("purelib")) / "mkl_on_amd.pth"
"""Lines of such files that begin with `import` are executed when Python starts."""
SHAPES = ((3000, 128, 128), (3000, 128, 256), (3000, 256, 128), (1024, 1024, 1024))
PRODUCTS = """
import sys, time, torch
torch.set_num_threads(1)
for m, k, n in {shapes}:
    a, b = torch.randn(m, k), torch.randn(k, n)
    times = []
    for _ in range(30):
        start = time.process_time()
        a @ b
        times.append(time.process_time() - start)
    print(2 * m * k * n / sorted(times)[len(times) // 4] / 1e9)
"""


def fits(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether this is an AMD processor with AVX-512."""
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    return "AuthenticAMD" in text and " avx512f " in text


def install() -> str:
    """Compile the library and have it loaded; returns what was done."""
    if sys.prefix == sys.base_prefix:
        return "Left as it is: this Python belongs to no virtual environment."
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not fits() or compiler is None:
        return "Left as it is: no AMD processor with AVX-512, or no C compiler."
    LIBRARY.parent.mkdir(parents=True, exist_ok=True)
    draft = LIBRARY.with_suffix(f".{os.getpid()}")
    command = [compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", str(draft)]
    subprocess.run(command, input=SOURCE, text=True, check=True)
    draft.replace(LIBRARY)
    load = f"ctypes.CDLL({str(LIBRARY)!r}, ctypes.RTLD_GLOBAL)"
    HOOK.write_text(f"import ctypes, os; os.path.exists({str(LIBRARY)!r}) and {load}\n")
    return f"MKL uses AVX-512 for every Python of {sys.prefix}."


def remove() -> str:
    """Undo `install`."""
    HOOK.unlink(missing_ok=True)
    LIBRARY.unlink(missing_ok=True)
    return f"MKL chooses for itself again in {sys.prefix}."


def products(library: Path | None) -> list[float]:
    """10^9 operations a second of one core for `SHAPES`, in a Python without the hook, with the library or without."""
    environment = {**os.environ, "PYTHONPATH": str(HOOK.parent), "OMP_NUM_THREADS": "1"}
    environment |= {"LD_PRELOAD": str(library)} if library else {}
    code = PRODUCTS.format(shapes=SHAPES)
    command = [sys.executable, "-S", "-c", code]  # -S: no .pth file is read
    printed = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    return [float(line) for line in printed.splitlines()]


def compare() -> str:
    """A line for each shape: without, with, ratio."""
    if not LIBRARY.exists():
        return f"Nothing to compare with in {sys.prefix}: run this without --compare first."
    lines = [
        f"{m} x {k} x {n}: {before:.0f} without, {after:.0f} GFLOP/s with it, {after / before:.2f} times"
        for (m, k, n), before, after in zip(SHAPES, products(None), products(LIBRARY), strict=True)
    ]
    return "\n".join(lines)


def main() -> None:
    """Console entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--remove", action="store_true")
    parser.add_argument("--compare", action="store_true")
    options = parser.parse_args()
    print(compare() if options.compare else remove() if options.remove else install())


if __name__ == "__main__":
    main()
