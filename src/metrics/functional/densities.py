"""Densities of non-negative quantities, as TA-GRPO draws them in Fig. 4."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def kernel_density(values: Tensor, grid: Tensor) -> Tensor:
    """Gaussian kernel density of non-negative `values` [n] on `grid` [m]; what would lie below zero is reflected.

    Returns [m] float64 with the integral 1 over 0..∞. `grid` ascends from 0 on. The bandwidth is Silverman's, and at
    least a hundredth of the grid, so that equal values show as a ridge.

    >>> grid = torch.linspace(0, 2, 201)
    >>> round(float(torch.trapezoid(kernel_density(torch.tensor([0.2, 0.3, 0.9]), grid), grid)), 2)
    1.0
    """
    values, grid = values.double(), grid.double()
    low, high = values.quantile(torch.tensor([0.25, 0.75], dtype=torch.float64, device=values.device))
    spread = min(float(values.std(correction=0)), float(high - low) / 1.34)
    width = max(0.9 * spread * len(values) ** -0.2, float(grid[-1] - grid[0]) / 100)
    kernels = [torch.exp(-0.5 * ((grid[:, None] - sign * values) / width).square()) for sign in (1, -1)]
    density: Tensor = (kernels[0] + kernels[1]).sum(1) / (len(values) * width * math.sqrt(2 * math.pi))
    return density
