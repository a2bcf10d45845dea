"""The torchmetrics classes: any split into updates and ranks gives what the functions give at once."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from tagrpo.metrics import MeanPairwiseDistance, PassAtK, UniformRewardPercentage, ZeroGradientPercentage
from tagrpo.metrics.functional import (
    mean_pairwise_distance,
    pass_at_k_curve,
    uniform_reward_percentage,
    zero_gradient_percentage,
)

GROUP = torch.arange(7).repeat_interleave(torch.tensor([2, 3, 1, 4, 2, 2, 5]))
GENERATOR = torch.Generator().manual_seed(0)
REWARDS = torch.randint(2, (len(GROUP),), generator=GENERATOR).float()
EMBEDDINGS = torch.randn(len(GROUP), 3, generator=GENERATOR)


@pytest.mark.parametrize(
    ("metric", "values", "expected"),
    [
        (UniformRewardPercentage, REWARDS, uniform_reward_percentage(REWARDS, GROUP)),
        (ZeroGradientPercentage, REWARDS, zero_gradient_percentage(REWARDS, GROUP)),
        (MeanPairwiseDistance, EMBEDDINGS, mean_pairwise_distance(EMBEDDINGS, GROUP).nanmean()),
    ],
)
def test_updates_in_parts_equal_one(metric, values, expected):
    parts = metric()
    for groups in ([0], [1, 2, 3], [4, 5, 6]):
        rows = torch.isin(GROUP, torch.tensor(groups))
        parts.update(values[rows], GROUP[rows])
    torch.testing.assert_close(parts.compute(), expected)


def test_pass_at_k_in_parts_equals_the_function():
    question = torch.arange(6).repeat_interleave(4)
    correct = torch.randint(2, (24,), generator=torch.Generator().manual_seed(3)).bool()
    metric = PassAtK(ks=(1, 2, 4))
    for rows in (slice(0, 4), slice(4, 20), slice(20, 24)):
        metric.update(correct[rows], question[rows])
    expected = pass_at_k_curve(4, correct.view(6, 4).sum(1), (1, 2, 4)).mean(0)
    assert {k: float(v) for k, v in metric.compute().items()} == dict(zip((1, 2, 4), expected.tolist(), strict=True))


TWO_RANKS = """
import sys, torch, torch.distributed as dist, torch.multiprocessing as mp
from tagrpo.metrics import PassAtK, UniformRewardPercentage

def run(rank, path):
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    question = torch.arange(5).repeat_interleave(3)
    correct = torch.tensor([1, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 0, 0, 0, 0]).bool()
    mine = question < 2 if rank == 0 else question >= 2          # uneven on purpose
    passed, uniform = PassAtK(ks=(1, 2)), UniformRewardPercentage()
    passed.update(correct[mine], question[mine])
    uniform.update(correct[mine].float(), question[mine])
    values = [*map(float, passed.compute().values()), float(uniform.compute())]
    alone = PassAtK(ks=(1, 2), sync_on_compute=False)
    alone.update(correct, question)
    assert values[:2] == [float(v) for v in alone.compute().values()], values
    assert values[2] == 60.0, values
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(run, (sys.argv[1],), 2)
"""


@pytest.mark.distributed
def test_two_ranks_with_uneven_shares_equal_one(tmp_path):
    script = tmp_path / "ranks.py"
    script.write_text(TWO_RANKS)
    subprocess.run([sys.executable, str(script), str(tmp_path / "store")], check=True, timeout=120)
