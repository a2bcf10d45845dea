"""Gradients by rephrasing against plain forwards of transformers, and against what a run logs of its own update."""

from __future__ import annotations

import pandas as pd
import pytest
import torch
from hydra import compose, initialize_config_module
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf
from transformers import AutoModelForCausalLM, AutoTokenizer

from studies.first.gradients import GradientSets, gradient_sets, gradients_at_the_end, gradients_at_the_start
from tagrpo.analysis.runs import RunFiles
from tagrpo.config import build
from tagrpo.modules.causal_policy import CausalPolicy
from tagrpo.redaction import save_resolved
from tagrpo.train import train

PROMPTS = {"a": ["Tom has 13 books. <sep>", "13 books has Tom. How many? <sep>"], "b": ["9 + 4 <sep>", "Add 4. <sep>"]}


@pytest.fixture
def rollouts():
    """Two questions, two prompts each, eight responses to each prompt; a third of the advantages are zero."""
    generator = torch.Generator().manual_seed(0)
    rows = [
        (0, question, rephrasing, "plain", prompt, torch.randint(4, 60, (int(length),), generator=generator).tolist())
        for question, prompts in PROMPTS.items()
        for rephrasing, prompt in enumerate(prompts)
        for length in torch.randint(1, 7, (8,), generator=generator)
    ]
    frame = pd.DataFrame(rows, columns=["iteration", "question", "rephrasing", "template", "prompt", "token_ids"])
    return frame.assign(advantage=[(i % 3 - 1) * (1 + i / 10) for i in range(len(frame))])


def plain_gradient(folder, rows, score_prompt, weights=lambda logprobs, row: 1.0):
    """Σ A · mean_t(w · log π) / responses through the model's own forward, one response after the other."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)

    def logprobs_of(text, ids):
        prompt = tokenizer(text, add_special_tokens=False).input_ids
        logits = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
        return logits.log_softmax(-1).gather(1, torch.tensor(ids)[:, None])[:, 0]

    for row in rows.itertuples():
        logprobs = logprobs_of(score_prompt(row), row.token_ids)
        with torch.no_grad():
            w = weights(logprobs, logprobs_of(row.prompt, row.token_ids))
        (row.advantage * (w * logprobs).mean() / len(rows)).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).double()


@pytest.mark.parametrize(("anchor", "correction"), [("own", None), ("original", None), ("original", 1.5)])
def test_each_set_has_the_gradient_of_its_responses(tiny_policy, rollouts, anchor, correction):
    tokenizer = AutoTokenizer.from_pretrained(tiny_policy)
    policy = CausalPolicy(AutoModelForCausalLM.from_pretrained(tiny_policy))
    found = gradient_sets(
        policy, lambda text: tokenizer(text, add_special_tokens=False).input_ids, rollouts, anchor, correction
    )
    assert found.rephrasings == [0, 0, 1, 1]
    number = rollouts.groupby(["question", "rephrasing"]).cumcount() // 4
    for index, (rephrasing, deal) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1)]):
        rows = rollouts[(rollouts["rephrasing"] == rephrasing) & (number == deal)]
        assert len(rows) == 8
        expected = plain_gradient(
            tiny_policy,
            rows,
            lambda row: PROMPTS[row.question][0] if anchor == "original" else row.prompt,
            lambda ours, own: (ours - own).exp().clamp(max=correction) if correction else 1.0,
        )
        torch.testing.assert_close(found.gradients[index], expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))


def test_sets_are_compared_by_what_they_were_sampled_from():
    east, north = [1.0, 0.0], [0.0, 1.0]
    sets = GradientSets([0, 0, 1, 1, 2], torch.tensor([east, [2.0, 0.0], north, [3.0, 4.0], east]).double())
    assert sets.norms() == pytest.approx({"original": 1.5, "rephrasing": (1 + 5 + 1) / 3})
    assert sets.cosines() == pytest.approx(
        {
            "original, original": 1.0,
            "rephrasing, itself": 0.8,
            "original, rephrasing": (2 * (0 + 0.6 + 1)) / 6,
            "rephrasing, another": (0 + 0.6) / 2,
        }
    )
    # The first two sets of the other run have responses that these have, too.
    other = GradientSets([0] * 3, torch.tensor([north, north, east]).double())
    assert sets.cosines_with(other) == pytest.approx({"original": 1.0, "rephrasing": (0 + 0.6 + 1) / 3})


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """One update of TA-GRPO with truncated correction on all responses at once."""
    directory = tmp_path_factory.mktemp("run")
    overrides = [
        "experiment=ta_grpo_corrected", "iterations=1", "policy.mini_batches=1", "policy.warmup=0", "threads=1",
        "logger=csv", "callbacks=[checkpoint,recorder]", "data.batch_size=4", "data.train.size=4",
        "data.num_rephrasings=1", "test=false", "trainer.limit_val_batches=0",
        "+trainer.enable_progress_bar=false", f"hydra.run.dir={directory}",
    ]  # fmt: skip
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        cfg = compose("train", overrides, return_hydra_config=True)
    cfg.hydra.runtime.output_dir = str(directory)
    HydraConfig.instance().set_config(cfg)
    made = build(cfg)
    save_resolved(OmegaConf.masked_copy(cfg, [key for key in cfg if key != "hydra"]), directory)
    train(made.module, made.datamodule, made.trainer, test=False)
    made.close()
    return RunFiles("ta_grpo_corrected", 0, directory)


def test_the_sets_of_a_run_add_up_to_its_update(run):
    sets = gradients_at_the_start(run)
    logged = pd.read_csv(run.path / "metrics.csv")["train/grad_norm"].dropna().item()
    assert logged > 0.1
    assert float(sets.gradients.mean(0).norm()) == pytest.approx(logged, rel=1e-5)


def test_the_end_is_measured_at_the_trained_policy(run):
    object.__setattr__(run, "ledger", {"iterations": 1})
    start, end = gradients_at_the_start(run), gradients_at_the_end(run)
    assert end is not None
    moved = float((end.gradients - start.gradients).norm() / start.gradients.norm())
    assert 1e-4 < moved < 0.5, "the same responses, at a policy that one update has moved"
    object.__setattr__(run, "ledger", {"iterations": 2})
    assert gradients_at_the_end(run) is None, "the last checkpoint is not of the last iteration"
