"""What an accelerator clears between fit and test, on a GPU that is pretended."""

from __future__ import annotations

import pytest
import torch
from hydra.core.hydra_config import HydraConfig
from lightning.fabric.accelerators import cuda as fabric_cuda
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.accelerators import CUDAAccelerator
from lightning.pytorch.accelerators import cuda as pytorch_cuda

from tagrpo.modules.lightning.accelerator import SharedCUDAAccelerator
from tagrpo.settings.config import compose_run, shares_gpus


class Tiny(LightningModule):
    """A module that trains and is tested on anything."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch, batch_idx):
        return self.layer(batch).sum()

    def test_step(self, batch, batch_idx):
        self.log("value", self.layer(batch).sum())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def pretended(kind):
    """The accelerator, with a CPU for its device."""

    class Pretended(kind):
        @staticmethod
        def get_parallel_devices(devices):
            return [torch.device("cpu")]

        @staticmethod
        def parse_devices(devices):
            return [0]

        @staticmethod
        def is_available():
            return True

        def setup_device(self, device):
            """There is none."""

    return Pretended()


@pytest.mark.parametrize(("kind", "expected"), [(CUDAAccelerator, 4), (SharedCUDAAccelerator, 0)])
def test_a_fit_and_a_test_clear_no_memory_that_an_engine_may_need(kind, expected, monkeypatch, tmp_path):
    cleared = []
    for module in (fabric_cuda, pytorch_cuda):
        monkeypatch.setattr(module, "_clear_cuda_memory", lambda: cleared.append(1))
    trainer = Trainer(
        accelerator=pretended(kind), devices=1, max_steps=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
    )  # fmt: skip
    module, data = Tiny(), torch.utils.data.DataLoader(torch.ones(4, 2), batch_size=2)
    trainer.fit(module, data)
    trainer.test(module, data, verbose=False)
    assert trainer.global_step == 1
    assert len(cleared) == expected, "set up and torn down, for the fit and for the test"


@pytest.mark.parametrize(("overrides", "shares"), [
    (["rollout=vllm", "trainer=gpu"], True), (["rollout=vllm", "trainer=gpu", "trainer.accelerator=cuda"], True),
    (["rollout=vllm_server", "trainer=gpu"], False), (["rollout=transformers", "trainer=gpu"], False),
    (["rollout=vllm_cpu"], False),
])  # fmt: skip
def test_gpus_are_shared_with_an_engine_in_the_training_process_alone(overrides, shares, tmp_path):
    try:
        assert shares_gpus(compose_run(tmp_path, overrides)) is shares
    finally:
        HydraConfig.instance().cfg = None
