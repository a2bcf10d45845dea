"""MKL is told what it asks for, where there is such a processor; products stay right; and all of it can be undone."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "mkl_on_amd.py"
PRODUCT = """
import numpy as np, torch
a, b = (torch.tensor(np.random.default_rng(seed).normal(size=(200, 300)), dtype=torch.float32) for seed in (0, 1))
exact = a.double().numpy() @ b.double().numpy().T
print(abs((a @ b.T).numpy() - exact).max())
"""


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("mkl_on_amd", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("vendor_id : AuthenticAMD\nflags : fpu avx2 avx512f avx512dq\n", True),
        ("vendor_id : AuthenticAMD\nflags : fpu avx2\n", False),
        ("vendor_id : GenuineIntel\nflags : fpu avx2 avx512f avx512dq\n", False),
    ],
)
def test_amd_processors_with_avx_512_alone(script, tmp_path, text, fits):
    (tmp_path / "cpuinfo").write_text(text)
    assert script.fits(tmp_path / "cpuinfo") is fits
    assert not script.fits(tmp_path / "none")


def test_a_python_of_the_environment_loads_it_until_it_is_removed(script, tmp_path):
    venv.create(tmp_path / "env", symlinks=True)
    python = tmp_path / "env" / "bin" / "python"

    def run(*arguments):
        packages = os.pathsep.join(path for path in sys.path if path.endswith("site-packages"))
        environment = {**os.environ, "PYTHONPATH": packages}
        return subprocess.run([str(python), *arguments], capture_output=True, text=True, check=False, env=environment)

    asked = ("-c", "import ctypes; print(ctypes.CDLL(None).mkl_serv_intel_cpu_true())")
    said = run(str(SCRIPT)).stdout
    if not script.fits():
        assert "Left as it is" in said
        assert run(*asked).returncode
        return
    assert "AVX-512" in said
    assert run(*asked).stdout == "1\n"
    assert float(run("-c", PRODUCT).stdout) < 1e-4
    run(str(SCRIPT), "--remove")
    assert run(*asked).returncode
    assert run("-c", "print(3)").stderr == ""


def test_a_python_of_the_system_is_left_alone(script, monkeypatch):
    monkeypatch.setattr(script, "fits", lambda: True)
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    assert "no virtual environment" in script.install()
