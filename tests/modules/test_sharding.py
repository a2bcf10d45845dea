"""Two ranks on a CPU against one process on the same global batch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from tagrpo.modules.sharding import decoder_layers

SCRIPT = '''
"""python script.py <policy folder> <output folder> <fsdp2 | ddp | one>"""
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from lightning.pytorch import Callback, LightningDataModule, Trainer
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader

sys.path.insert(0, {tests!r})
from conftest import make_hand_made_batch as make_batch
from tagrpo.modules.advantages import GroupAdvantage
from tagrpo.modules.losses import PolicyLoss
from tagrpo.modules.model import load_causal_lm
from tagrpo.modules.policy import PolicyModule
from tagrpo.modules.sharding import FullyShardedStrategy
from tagrpo.rollouts.dynamic_sampling import join_batches, take_questions

torch.set_num_threads(1)
folder, output, kind = sys.argv[1:]
# Rank 0 has more and longer work; the second question of rank 1 has no gradient, so that rank 1 has an empty turn.
SHARES = [
    make_batch([[[1.0, 0.0, 1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [1.0, 1.0]], [[0.0, 1.0], [0.0, 0.0]]], seed=1),
    make_batch([[[1.0, 0.0]], [[1.0, 1.0]], [[0.0, 0.3]]], seed=2),
]


class Data(LightningDataModule):
    def share(self):
        if kind != "one":
            return SHARES[self.trainer.global_rank]
        pick = lambda rank, question: take_questions(SHARES[rank], torch.tensor([question]))
        return join_batches([pick(rank, question) for question in range(3) for rank in range(2)])

    def train_dataloader(self):
        return DataLoader([replace(self.share(), rollouts=None)], batch_size=None)


class Attach(Callback):
    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        batch.rollouts = trainer.datamodule.share().rollouts


for kl, max_grad_norm in ((0.0, 1e9), (0.3, 0.5)):
    module = PolicyModule(
        partial(load_causal_lm, folder), folder, GroupAdvantage("question", scale="batch"), PolicyLoss(kl_coef=kl),
        partial(torch.optim.SGD, lr=0.2), mini_batches=3, token_budget=25, schedule="constant", warmup=0.0,
        max_grad_norm=max_grad_norm,
    )
    strategy = {{
        "fsdp2": lambda: FullyShardedStrategy(process_group_backend="gloo"),
        "ddp": lambda: DDPStrategy(process_group_backend="gloo"),
        "one": lambda: "auto",
    }}[kind]()
    trainer = Trainer(
        accelerator="cpu", devices=1 if kind == "one" else 2, strategy=strategy, max_steps=3, logger=False,
        callbacks=[Attach()], enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        use_distributed_sampler=False,
    )
    trainer.fit(module, Data())
    assert trainer.global_step == 3
    tensors = {{name: tensor.clone() for name, tensor in module.full_parameters()}}
    torch.save(tensors, Path(output) / f"{{kind}}-{{kl}}-{{trainer.global_rank}}.pt")
'''


def run(kind: str, policy: Path, output: Path) -> None:
    script = output / "script.py"
    script.write_text(SCRIPT.format(tests=str(Path(__file__).parents[1])))
    result = subprocess.run(
        [sys.executable, str(script), str(policy), str(output), kind],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]


@pytest.mark.distributed
@pytest.mark.parametrize("kind", ["fsdp2", "ddp"])
def test_two_ranks_with_uneven_work_equal_one_process(kind, tiny_policy, tmp_path):
    run(kind, tiny_policy, tmp_path)
    run("one", tiny_policy, tmp_path)
    start = dict(torch.load(tmp_path / "one-0.0-0.pt"))
    for kl in (0.0, 0.3):
        expected = torch.load(tmp_path / f"one-{kl}-0.pt")
        for rank in (0, 1):
            parameters = torch.load(tmp_path / f"{kind}-{kl}-{rank}.pt")
            assert parameters.keys() == expected.keys()
            for name, parameter in parameters.items():
                torch.testing.assert_close(
                    parameter, expected[name], atol=1e-5, rtol=1e-5, msg=f"{name} of rank {rank}"
                )
        if kl:
            assert any(not torch.equal(expected[name], start[name]) for name in start), "the KL term must matter"


def test_decoder_layers_are_the_longest_list_of_modules():
    layers = [nn.Linear(1, 1) for _ in range(3)]
    module = nn.ModuleDict({"heads": nn.ModuleList([nn.Linear(1, 1)]), "layers": nn.ModuleList(layers)})
    assert decoder_layers(module) == layers
    with pytest.raises(ValueError, match="strategy=auto or ddp"):
        decoder_layers(nn.Linear(1, 1))
