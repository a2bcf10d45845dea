"""Copies of shards, weights from rank 0 and host memory, on ranks of a CPU, against one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import timedelta
from itertools import product
from pathlib import Path

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel, Qwen3Config, Qwen3ForCausalLM

from tagrpo.modules.lightning.strategy import FullyShardedStrategy
from tests.helpers import in_fork

COMMON = """
import sys
from functools import partial
from pathlib import Path

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader
from transformers import AutoTokenizer

sys.path[:0] = {paths!r}
from conftest import make_hand_made_batch as make_batch
from helpers import in_forks
from ranks import AttachShare, RankBatches
from tagrpo.modules.advantages import GroupAdvantage
from tagrpo.modules.losses import PolicyLoss
from tagrpo.modules.policy.lora import LoraSettings
from tagrpo.modules.policy.model import load_causal_lm
from tagrpo.modules.lightning.policy_module import PolicyModule, PolicyOptions
from tagrpo.modules.lightning.strategy import FullyShardedStrategy
from tagrpo.packing.batch import pack
from tagrpo.packing.policy import CausalPolicy
from tagrpo.runs.checkpoints import unsharded
from tagrpo.digests import bit_sums, json_digest

torch.set_num_threads(1)
output = Path(sys.argv[1])
QUIET = dict(
    accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    use_distributed_sampler=False,
)


def module_of(load, folder, kl_coef):
    return PolicyModule(
        load, folder, GroupAdvantage("question"), PolicyLoss(kl_coef=kl_coef),
        partial(torch.optim.SGD, lr=0.3, momentum=0.9),
        PolicyOptions(mini_batches=3, token_budget=25, schedule="constant", warmup=0.0, max_grad_norm=0.5),
    )
"""


def run(program: str, *arguments: str | Path, environment: dict[str, str] | None = None) -> None:
    """Run `COMMON` and `program`, in a fork; with an environment of its own in a new process.

    The first of `arguments` is a folder for what it writes.
    """
    source = COMMON.format(paths=[str(path) for path in Path(__file__).parents[2:4]]) + program
    if environment is None:
        code, output = in_fork(lambda: exec(source, {"__name__": "__main__"}), *arguments)
        assert code == 0, output[-4000:]
        return
    script = Path(arguments[0]) / "script.py"
    script.write_text(source)
    result = subprocess.run(
        [sys.executable, str(script), *map(str, arguments)], env={**os.environ, **environment},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-4000:]


TRAINING = '''
folder, names, ranks = sys.argv[2], sys.argv[3:], in_forks({1: 1, 4: 4})
# Ranks have unequal work, and two of them a question without gradient.
SHARES = [
    make_batch([[[1.0, 0.0, 1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [1.0, 1.0]], [[0.0, 1.0], [0.0, 0.0]]], seed=1),
    make_batch([[[1.0, 0.0]], [[1.0, 1.0]], [[0.0, 0.3]]], seed=2),
    make_batch([[[0.0, 1.0, 1.0]], [[1.0, 0.0]], [[0.0, 0.0]]], seed=3),
    make_batch([[[0.5, 0.0], [1.0, 0.0]], [[0.0, 0.7]], [[1.0, 0.0]]], seed=4),
]


class Attach(AttachShare):
    def __init__(self, start):
        self.start = start

    def on_train_start(self, trainer, pl_module):
        if self.start:
            pl_module.export(self.start, AutoTokenizer.from_pretrained(folder))


def fit(name, replicas, steps, start=None, checkpoint=None):
    """Train until `steps`, from a checkpoint, of which `start` becomes the export."""
    lora = LoraSettings(rank=3) if name == "lora" else None
    module = module_of(partial(load_causal_lm, folder, lora=lora), folder, 0.3)
    strategy = FullyShardedStrategy(replicas=replicas) if ranks > 1 else "auto"
    trainer = Trainer(devices=ranks, strategy=strategy, max_steps=steps, callbacks=[Attach(start)], **QUIET)
    trainer.fit(module, RankBatches(SHARES, single=ranks == 1), ckpt_path=checkpoint)
    assert trainer.global_step == steps
    if ranks > 1:
        parameter = next(module.policy.model.model.layers[0].mlp.parameters())
        assert parameter.to_local().numel() == parameter.numel() * replicas / ranks
    return module, trainer


def whole(module):
    return torch.cat([tensor.flatten() for _, tensor in module.full_parameters()])


for name in names:
    if ranks == 1:
        torch.save(whole(fit(name, 1, 6)[0]), output / f"{name}.pt")
    for first, second in ((2, 1), (1, 2)) if ranks > 1 else ():
        module, trainer = fit(name, first, 3)
        stem = f"{name}-{first}-{second}"
        checkpoint = output / f"{stem}.ckpt"
        trainer.save_checkpoint(checkpoint)
        module.export(output / f"{stem}-before", AutoTokenizer.from_pretrained(folder))
        parameters = {f"policy.{n}": p.detach().full_tensor() for n, p in module.policy.named_parameters()}
        stored = unsharded(checkpoint)["state_dict"]
        assert all(torch.equal(p, stored[n]) for n, p in parameters.items())
        module, trainer = fit(name, second, 6, output / f"{stem}-after", checkpoint)
        torch.save(whole(module), output / f"{stem}-{trainer.global_rank}.pt")
'''


@pytest.mark.parametrize("name", ["kl", pytest.param("lora", marks=pytest.mark.slow)])
@pytest.mark.runs
@pytest.mark.distributed
def test_two_copies_on_four_ranks_train_as_one_process_does_and_go_on_as_one_copy_and_the_other_way_round(
    tiny_policy, tmp_path, name
):
    run(TRAINING, tmp_path, tiny_policy, name)
    start = torch.cat(
        [p.detach().flatten() for p in Qwen3ForCausalLM.from_pretrained(tiny_policy).parameters()]
    )
    expected = torch.load(tmp_path / f"{name}.pt")
    moved = (expected - start).norm()
    assert moved > 1e-3
    # Gradients are rounded, and both runs round each weight in each of six steps, by half a unit at most.
    rounding = 1e-6 * moved + 2 * 6 * 0.5 * torch.finfo(torch.float32).eps * expected.norm()
    assert rounding < 1e-4 * moved, "an error of the method is larger"
    for stem in (f"{name}-2-1", f"{name}-1-2"):
        before, after = (tmp_path / f"{stem}-{time}" / "model.safetensors" for time in ("before", "after"))
        assert before.read_bytes() == after.read_bytes(), stem
        for rank in range(4):
            difference = torch.load(tmp_path / f"{stem}-{rank}.pt") - expected
            assert difference.norm() < rounding, (stem, rank)


SIXTY_FOUR = """
import torch.distributed as dist
from lightning.pytorch import LightningModule
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import Qwen3Config, Qwen3ForCausalLM
from tagrpo.modules.lightning.strategy import prepare

dist.init_process_group("fake", rank=0, world_size=64, store=FakeStore())
config = Qwen3Config(
    vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=2, head_dim=64,
)
for replicas in (1, 8, 32):
    strategy = FullyShardedStrategy(replicas=replicas)
    Trainer(devices=8, num_nodes=8, strategy=strategy, **QUIET)
    strategy.connect(LightningModule())
    strategy.setup_environment()
    policy = prepare(CausalPolicy(Qwen3ForCausalLM(config)), strategy, "float32", None)
    for parameter in policy.parameters():
        assert parameter.to_local().numel() == parameter.numel() // (64 // replicas), replicas
"""


@pytest.mark.distributed
def test_of_sixty_four_ranks_each_holds_its_share_of_one_copy(tmp_path):
    run(SIXTY_FOUR, tmp_path)


@pytest.mark.parametrize("replicas", [0, -1, 3, 8])
def test_copies_that_do_not_divide_the_ranks_are_refused(replicas):
    strategy = FullyShardedStrategy(
        replicas=replicas, timeout=timedelta(seconds=5)
    )  # no other ranks ever come
    Trainer(accelerator="cpu", devices=2, num_nodes=2, strategy=strategy, logger=False)
    strategy.connect(LightningModule())
    with pytest.raises(ValueError, match=rf"strategy\.replicas.*{replicas}"):
        strategy.setup_environment()


LOADING = '''
kind = in_forks({"fsdp2": 2, "ddp": 2})
folders = dict(tied=sys.argv[2], lora=sys.argv[2], random=sys.argv[2], gpt2=sys.argv[3])
prompts = [torch.tensor([5, 6, 7]), torch.tensor([4, 9])]
responses = [torch.tensor([8, 9, 11, 3]), torch.tensor([10]), torch.tensor([12, 13])]
packed = pack(prompts, torch.tensor([0, 0, 1]), responses, torch.arange(3))
OPTIONS = {
    "tied": {},
    "gpt2": {},
    "lora": {"lora": LoraSettings(rank=3)},
}


class Check(Callback):
    def __init__(self, name):
        self.name, self.places = name, []

    def load(self):
        """As the policy is loaded, every rank with a random state of its own."""
        torch.manual_seed(1 + torch.distributed.get_rank())
        model = load_causal_lm(folders[self.name], **OPTIONS[self.name])
        self.places.append({x.device.type for x in [*model.parameters(), *model.buffers()]})
        return model

    def on_validation_start(self, trainer, module):
        torch.manual_seed(1)
        model = load_causal_lm(folders[self.name], **OPTIONS[self.name])
        assert self.places == [{"meta" if trainer.global_rank else "cpu"}] * (1 if self.name == "lora" else 2)
        assert module.loaded == json_digest(bit_sums(model))
        assert module.policy.model.config.to_dict() == model.config.to_dict()
        assert module.policy.model.generation_config.to_dict() == model.generation_config.to_dict()
        own = module.policy.model
        assert own.get_output_embeddings().weight is own.get_input_embeddings().weight
        assert [(n, p.requires_grad) for n, p in own.named_parameters()] == [
            (n, p.requires_grad) for n, p in model.named_parameters()
        ]
        whole = [p.full_tensor() if kind == "fsdp2" else p for p in own.parameters()]
        assert all(torch.equal(a, b) for a, b in zip(whole, model.parameters(), strict=True))
        assert all(torch.equal(a, b) for a, b in zip(own.buffers(), model.buffers(), strict=True))
        expected = CausalPolicy(model).eval()(packed).logprobs
        for policy in (module.policy, module.reference):
            assert policy is None or torch.equal(policy(packed).logprobs, expected), self.name
        (output / f"{kind}-{self.name}-{trainer.global_rank}").touch()


for name in OPTIONS:
    check = Check(name)
    strategy = FullyShardedStrategy() if kind == "fsdp2" else DDPStrategy(process_group_backend="gloo")
    trainer = Trainer(devices=2, strategy=strategy, callbacks=[check], **QUIET)
    module = module_of(check.load, folders[name], 0.1)
    plain = module.configure_model

    def configure():  # as to train, with a reference
        trainer.training = True
        plain()
        trainer.validating = True

    module.configure_model = configure
    trainer.validate(module, DataLoader([0], batch_size=None), verbose=False)
'''


@pytest.mark.distributed
def test_what_rank_0_alone_loads_is_on_every_rank_to_the_bit_and_gives_the_same_log_probs(
    tiny_policy, tmp_path
):
    # A tied model with buffers beside its parameters, and settings for generation that its configuration lacks.
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=32, n_embd=16, n_layer=2, n_head=2))
    model.generation_config.top_k, model.generation_config.do_sample = 7, True
    model.save_pretrained(tmp_path / "gpt2")
    run(LOADING, tmp_path, tiny_policy, tmp_path / "gpt2")
    for kind, name, rank in product(("fsdp2", "ddp"), ("tied", "lora", "gpt2"), (0, 1)):
        assert (tmp_path / f"{kind}-{name}-{rank}").exists()


MEMORY = '''
import gc
import json
import threading
import time

folder = sys.argv[2]


class Peak(threading.Thread):
    """The most memory of this process that is no page of a file, above that at the start; bytes."""

    def __init__(self):
        super().__init__(daemon=True)
        gc.collect()
        self.first = self.peak = self.now()
        self.ended = False
        self.start()

    @staticmethod
    def now():
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

    def run(self):
        while not self.ended:
            self.peak = max(self.peak, self.now())
            time.sleep(0.001)

    def end(self):
        self.ended = True
        self.join()
        return self.peak - self.first


class Measure(Callback):
    def setup(self, trainer, pl_module, stage):
        self.load = Peak()

    def on_validation_start(self, trainer, module):
        found = {"load": self.load.end()}
        tokenizer = AutoTokenizer.from_pretrained(folder)
        export = Peak()
        module.export(output / "model", tokenizer)
        found["export"] = export.end()
        (output / f"{trainer.global_rank}.json").write_text(json.dumps(found))


trainer = Trainer(devices=2, strategy=FullyShardedStrategy(), callbacks=[Measure()], **QUIET)
module = module_of(partial(load_causal_lm, folder), folder, 0.0)
trainer.validate(module, DataLoader([0], batch_size=None), verbose=False)
'''


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_loading_and_export_take_one_model_over_all_ranks_beside_their_shards(tiny_policy, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(tiny_policy)
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=512, intermediate_size=2048, num_hidden_layers=12,
        num_attention_heads=8, num_key_value_heads=8, head_dim=64, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    model = Qwen3ForCausalLM(
        config
    ).bfloat16()  # read from a file in float32, pages of that file would be the weights
    size = 4 * sum(parameter.numel() for parameter in model.parameters())
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "large")
    # Freed tensors go back to the system at once, as those above 32 MiB always do.
    run(MEMORY, tmp_path, tmp_path / "large", environment={"MALLOC_MMAP_THRESHOLD_": "65536"})
    peaks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    found = {phase: [peak[phase] / size for peak in peaks] for phase in ("load", "export")}
    print(f"{size / 1e6:.0f} MB in float32, two ranks: " + json.dumps(found))
    loading, export = found["load"], found["export"]
    assert min(loading) > 0.5, "their shards"
    assert sum(loading) < 1 + 0.8
    assert loading[0] < 1.25
    assert loading[1] < 0.5 + 0.25
    assert 1 <= export[0] < 1.05, "the whole, which is written"
    assert 0.02 < export[1] < 0.1, "some of the largest tensors"
