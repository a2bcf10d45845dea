"""TRL's trainer with shared prefixes against the same trainer as it is."""

from __future__ import annotations

import copy
import inspect
import warnings
from types import SimpleNamespace

import pytest
import torch

pytestmark = pytest.mark.shell
trl = pytest.importorskip("trl", reason="needs TRL, the extra `bench`")

from datasets import Dataset  # noqa: E402
from peft import LoraConfig, PromptTuningConfig, get_peft_model  # noqa: E402
from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: E402
from transformers import (  # noqa: E402
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)
from trl.experimental.gmpo import GMPOConfig, GMPOTrainer  # noqa: E402

from tagrpo.packing import pack  # noqa: E402
from tagrpo.packing import trl as packing  # noqa: E402
from tagrpo.packing.attention import ABSOLUTE_POSITIONS, PREFIX_ATTENTION, PREFIX_SHARING  # noqa: E402
from tagrpo.packing.trl import METHOD, share_prefixes  # noqa: E402
from tests.packing.model_types import build  # noqa: E402

SMALL = {
    "vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1,
}  # fmt: skip
FAMILIES = {"qwen2": (Qwen2ForCausalLM, Qwen2Config), "llama": (LlamaForCausalLM, LlamaConfig)}
CONFIGS = {trl.GRPOTrainer: trl.GRPOConfig, trl.RLOOTrainer: trl.RLOOConfig, GMPOTrainer: GMPOConfig}
LOSSES = ["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "vespo", "luspo"]
PROMPT = [0, 1, 0, 1, 2, 0]  # equal prompts need not be neighbours
PROMPT_LENGTHS, LENGTHS = [6, 3, 9], [5, 1, 7, 3, 2, 4]


def tiny_model(family="qwen2", **options):
    torch.manual_seed(0)
    kind, config = FAMILIES[family]
    model = kind(config(**SMALL, **options))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0 if parameter.dim() > 1 else 1.0)
    return model


def tokenizer():
    words = {"<pad>": 0, "</s>": 1, **{f"w{n}": n for n in range(2, 40)}}
    made = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="</s>")


def make_trainer(folder, model=None, lora=False, kind=None, **options):
    arguments = {
        "per_device_train_batch_size": 6, "gradient_accumulation_steps": 1, "num_generations": 3, "bf16": False,
        "max_completion_length": 7, "use_cpu": True, "report_to": [], "save_strategy": "no", "disable_tqdm": True,
        "gradient_checkpointing": False, **options,
    }  # fmt: skip
    rows = ["w5 w6 w7 w8", "w9 w10 w11", "w5 w12", "w9 w10"]
    kind = kind or trl.GRPOTrainer
    trainer = kind(
        model=tiny_model() if model is None else model,
        reward_funcs=lambda completions, **_: [float(len(text) % 3) for text in completions],
        args=CONFIGS[kind](output_dir=str(folder), **arguments),
        train_dataset=Dataset.from_list([{"prompt": text} for text in rows * 4]),
        eval_dataset=Dataset.from_list([{"prompt": text} for text in rows]),
        processing_class=tokenizer(),
        peft_config=LoraConfig(r=2, target_modules=["q_proj", "v_proj", "down_proj"]) if lora else None,
    )
    if lora:
        generator = torch.Generator().manual_seed(1)
        for name, parameter in trainer.model.named_parameters():
            if "lora_B" in name:  # zero at first: the adapters would have no effect
                parameter.data.normal_(std=0.1, generator=generator)
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    return trainer


def batch(prompt=PROMPT, lengths=LENGTHS, seed=2):
    """Of `_compute_loss`; prompts padded on the left and completions on the right, as TRL has them."""
    generator = torch.Generator().manual_seed(seed)
    heads = [torch.randint(2, 40, (n,), generator=generator) for n in PROMPT_LENGTHS]
    heads = [heads[p] if p < 3 else torch.randint(2, 40, (4 + p % 3,), generator=generator) for p in prompt]
    beginning = torch.randint(2, 40, (3,), generator=generator)  # that completions have in common
    width, height = max(map(len, heads)), max(7, *lengths)
    ids, mask = torch.zeros(2, len(prompt), width + height, dtype=torch.long)
    for row, (head, length) in enumerate(zip(heads, lengths, strict=True)):
        ids[row, width - len(head) : width] = head
        own = torch.randint(2, 40, (length,), generator=generator)
        ids[row, width : width + length] = torch.cat([beginning[: row % 4], own])[:length]
        mask[row, width - len(head) : width + length] = 1
    return {
        "prompt_ids": ids[:, :width], "prompt_mask": mask[:, :width], "completion_ids": ids[:, width:],
        "completion_mask": mask[:, width:], "advantages": torch.randn(len(prompt), generator=generator),
        "num_items_in_batch": mask[:, width:].sum(),
    }  # fmt: skip


def arguments(inputs):
    joined = [torch.cat([inputs[f"prompt_{x}"], inputs[f"completion_{x}"]], 1) for x in ("ids", "mask")]
    return *joined, inputs["completion_ids"].shape[1]


def scores(trainer, inputs, **options):
    """Log-probs, entropies, and the gradient of a sum over both."""
    trainer.model.zero_grad()
    found = getattr(trainer, METHOD)(trainer.model, *arguments(inputs), compute_entropy=True, **options)
    logprobs, entropies, aux = found
    assert aux is None
    mask = inputs["completion_mask"]
    (
        (logprobs.exp() + 0.3 * entropies) * mask * torch.arange(mask.numel()).view(mask.shape).cos()
    ).sum().backward()
    return logprobs.detach(), entropies.detach(), gradient(trainer)


def gradient(trainer):
    return torch.cat([p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None])


def near(found, expected):
    for ours, theirs in zip(found[:2], expected[:2], strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-6)
    assert (found[2] - expected[2]).norm() < 1e-6 * expected[2].norm()


@pytest.mark.parametrize("checkpointing", [False, "reentrant", "not reentrant"])
@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_log_probs_entropies_and_gradients_are_those_of_trl(family, lora, checkpointing, tmp_path):
    trainer = make_trainer(tmp_path, tiny_model(family), lora, temperature=0.8)
    inputs = batch()
    expected = scores(trainer, inputs)
    if checkpointing:
        trainer.model.enable_input_require_grads()
        options = {"use_reentrant": checkpointing == "reentrant"}
        trainer.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)
    share_prefixes(trainer)
    near(scores(trainer, inputs), expected)
    near(scores(trainer, inputs, batch_size=4), expected)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("kind", sorted(PREFIX_SHARING))
def test_every_model_type_has_the_scores_and_gradients_of_trl(kind, checkpointing, tmp_path):
    trainer = make_trainer(tmp_path, build(kind))
    # TRL counts padding in the positions of these: prompts of one length have none.
    inputs = batch([0] * 6) if kind in ABSOLUTE_POSITIONS else batch()
    logprobs, entropies, expected = scores(trainer, inputs)
    if checkpointing:
        options = {"use_reentrant": False}
        trainer.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)
    share_prefixes(trainer)
    found = scores(trainer, inputs)
    torch.testing.assert_close(found[:2], (logprobs, entropies), atol=1e-5, rtol=1e-5)
    assert (found[2] - expected).norm() < 2e-6 * expected.norm()


@pytest.mark.parametrize("kind", sorted(ABSOLUTE_POSITIONS))
def test_padded_prompts_are_left_to_trl_if_their_padding_counts(kind, tmp_path):
    trainer = make_trainer(tmp_path, build(kind))
    expected = scores(trainer, batch())
    share_prefixes(trainer)
    with pytest.warns(UserWarning, match=f"positions of {kind}"):
        found = scores(trainer, batch())
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, expected, strict=True))


@pytest.mark.parametrize("prompt", [[0] * 6, [3, 4, 5, 6, 7, 8]], ids=["one prompt", "distinct prompts"])
def test_batches_of_one_prompt_and_of_distinct_ones(prompt, tmp_path):
    trainer, inputs = make_trainer(tmp_path), batch(prompt)
    expected = scores(trainer, inputs)
    share_prefixes(trainer)
    near(scores(trainer, inputs), expected)


def test_a_prompt_of_one_token(tmp_path):
    trainer, inputs = make_trainer(tmp_path), batch()
    inputs["prompt_mask"][1, :-1] = 0
    expected = scores(trainer, inputs)
    share_prefixes(trainer)
    near(scores(trainer, inputs), expected)


def test_each_distinct_prefix_is_encoded_once_and_logits_are_those_that_predict(tmp_path, monkeypatch):
    trainer, inputs, lengths, predicted = make_trainer(tmp_path), batch(), [], []
    share_prefixes(trainer)
    trainer.model.model.layers[0].mlp.register_forward_pre_hook(
        lambda _, x: lengths.append(x[0].shape[:2].numel())
    )
    head = packing.head_scores
    monkeypatch.setattr(packing, "head_scores", lambda x, *rest: predicted.append(len(x)) or head(x, *rest))
    scores(trainer, inputs)
    prefixes = set()
    states = set()
    ids, mask, _ = arguments(inputs)
    for row, kept, length in zip(ids, mask.bool(), LENGTHS, strict=True):
        tokens = tuple(row[kept].tolist()[:-1])
        every = [tokens[: end + 1] for end in range(len(tokens))]
        prefixes.update(every)
        states.update(every[-length:])
    assert lengths == [len(prefixes)]
    assert predicted == [len(states)]
    assert len(prefixes) < sum(PROMPT_LENGTHS) + sum(LENGTHS) - len(LENGTHS), "completions share beginnings"


@pytest.mark.parametrize(("dtype", "options"), [
    ("bfloat16", {}), ("bfloat16", {"cast_lm_head_to_fp32": True}), ("float32", {"bf16": True}),
], ids=["weights", "float32 head", "autocast"])  # fmt: skip
def test_bfloat16_is_served_no_less_exactly_than_by_trl(dtype, options, tmp_path):
    inputs = batch()
    exact = scores(make_trainer(tmp_path, tiny_model()), inputs)
    trainer = make_trainer(tmp_path, tiny_model().to(getattr(torch, dtype)), **options)
    theirs = scores(trainer, inputs)
    share_prefixes(trainer)
    ours = scores(trainer, inputs)
    assert {x.dtype for x in ours[:2]} == {torch.float32}
    for found, same, reference in zip(ours, theirs, exact, strict=True):
        assert 0 < (found.float() - reference).norm() < 1.5 * (same.float() - reference).norm()


@pytest.mark.parametrize("options", [
    *({"loss_type": loss} for loss in LOSSES), {"top_entropy_quantile": 0.4}, {"entropy_coef": 0.1},
    {"importance_sampling_level": "sequence"}, {"delta": 1.5},
], ids=str)  # fmt: skip
def test_losses_and_their_gradients_are_those_of_trl(options, tmp_path):
    trainer, inputs = make_trainer(tmp_path, **options), batch()
    inputs["tool_mask"] = torch.ones_like(inputs["completion_mask"])
    inputs["tool_mask"][2, 2:4] = 0
    inputs["completion_mask"][3] = 0  # a truncated completion that is masked
    generator = torch.Generator().manual_seed(3)
    before, _, _ = getattr(trainer, METHOD)(trainer.model, *arguments(inputs))
    inputs["old_per_token_logps"] = before.detach() + 0.3 * torch.randn(before.shape, generator=generator)

    def loss():
        trainer.model.zero_grad()
        value = trainer._compute_loss(trainer.model, inputs)
        value.backward()
        return value.item(), gradient(trainer)

    expected, theirs = loss()
    share_prefixes(trainer)
    found, ours = loss()
    assert found == pytest.approx(expected, rel=1e-6, abs=5e-7), "terms of order one that cancel, in float32"
    assert theirs.norm() > 0
    assert (ours - theirs).norm() < 1e-6 * theirs.norm()


def test_a_batch_whose_completions_are_all_masked_gives_zeros_that_have_a_gradient(tmp_path):
    trainer, inputs = make_trainer(tmp_path), batch()
    share_prefixes(trainer)
    inputs["completion_mask"][:] = 0
    found = getattr(trainer, METHOD)(trainer.model, *arguments(inputs), compute_entropy=True)
    assert found[0].requires_grad
    assert not found[0].any()


@pytest.mark.parametrize(("kind", "options"), [
    (trl.GRPOTrainer, {"loss_type": LOSSES[0]}),
    # The gradient of each loss is compared above.
    *(pytest.param(trl.GRPOTrainer, {"loss_type": loss}, marks=pytest.mark.runs) for loss in LOSSES[1:]),
    (trl.GRPOTrainer, {"beta": 0.1, "num_iterations": 2, "mask_truncated_completions": True}),
    (trl.GRPOTrainer, {"beta": 0.1, "lora": True, "gradient_checkpointing": True, "steps_per_generation": 4}),
    pytest.param(trl.RLOOTrainer, {}, marks=pytest.mark.runs),
    (trl.RLOOTrainer, {"beta": 0.1, "num_iterations": 2, "mask_truncated_completions": True}),
    (trl.RLOOTrainer, {"beta": 0.1, "lora": True, "gradient_checkpointing": True}),
    pytest.param(GMPOTrainer, {}, marks=pytest.mark.runs),
    (GMPOTrainer, {"beta": 0.1, "num_iterations": 2}),
], ids=lambda value: value.__name__ if isinstance(value, type) else str(value))  # fmt: skip
def test_four_steps_of_training_are_those_of_trl(kind, options, tmp_path):
    losses, weights, evaluated = [], [], []
    tiny_model().save_pretrained(tmp_path / "policy")  # the reference is read from there
    start = torch.cat([p.detach().flatten() for p in tiny_model().parameters()])
    for shared in (False, True):
        model = Qwen2ForCausalLM.from_pretrained(tmp_path / "policy")
        trainer = make_trainer(
            tmp_path, model, kind=kind, max_steps=4, logging_steps=1, learning_rate=0.1, optim="sgd",
            eval_strategy="steps", eval_steps=4, per_device_eval_batch_size=6, gradient_accumulation_steps=2, **options,
        )  # fmt: skip
        if shared:
            share_prefixes(trainer)
        implementation = trainer.model.config._attn_implementation
        torch.manual_seed(5)
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning) if shared else None
            trainer.train()
        assert trainer.model.config._attn_implementation == implementation != PREFIX_ATTENTION
        losses.append([row["loss"] for row in trainer.state.log_history if "loss" in row])
        evaluated.append([row["eval_loss"] for row in trainer.state.log_history if "eval_loss" in row])
        weights.append(torch.cat([p.detach().flatten() for p in trainer.model.parameters()]))
    assert len(losses[1]) == 4
    assert losses[1] == pytest.approx(losses[0], abs=1e-6)
    assert evaluated[1] == pytest.approx(evaluated[0], abs=1e-6)
    if "lora" not in options:
        assert (weights[0] - start).abs().max() > 1e-3, "it learned"
    torch.testing.assert_close(weights[1], weights[0], atol=2e-6, rtol=0)


def packed_logprobs(model, packed):
    """Score packed tokens as the trainer does after the call."""
    return model(input_ids=packed.input_ids, packed=packed).logprobs


def changed(model):
    """Give a model other weights, as a teacher or an average has after some steps."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.ones_like(parameter).cumsum(-1).sin())
    return model.eval()


@pytest.mark.parametrize("when", ["before", "after", "trained"])
@pytest.mark.parametrize("family", FAMILIES)
def test_copies_of_a_model_score_and_sample_with_weights_of_their_own(family, when, tmp_path):
    model = tiny_model(family)
    expected = changed(copy.deepcopy(model))
    early = copy.deepcopy(model)
    trainer = make_trainer(tmp_path, model)
    share_prefixes(trainer)
    if when == "trained":
        scores(trainer, batch())
    found = changed(early if when == "before" else copy.deepcopy(trainer.model))
    ids = torch.randint(2, 40, (3, 9), generator=torch.Generator().manual_seed(1))
    before = trainer.model(ids).logits
    assert torch.equal(found(ids).logits, expected(ids).logits)
    rows = torch.cat([ids[:1]] * 4)
    config = copy.deepcopy(trainer.generation_config)
    config.do_sample = False
    drawn = [
        m.generate(input_ids=rows, attention_mask=rows > 0, generation_config=config)
        for m in (found, expected)
    ]
    assert torch.equal(*drawn)
    if when != "before":
        packed = pack([ids[0, :5]], torch.zeros(2, dtype=torch.long), [ids[0, 5:], ids[1, 5:]])
        alone = expected(torch.stack([ids[0], torch.cat([ids[0, :5], ids[1, 5:]])])).logits.log_softmax(-1)
        targets = torch.stack([ids[0, 5:], ids[1, 5:]])
        ours = packed_logprobs(found, packed).view(2, 4)
        torch.testing.assert_close(
            ours, alone[:, 4:-1].gather(-1, targets[..., None])[..., 0], atol=2e-6, rtol=0
        )
    implementation = found.config._attn_implementation
    assert implementation == trainer.model.config._attn_implementation != PREFIX_ATTENTION
    assert torch.equal(trainer.model(ids).logits, before)
    if when != "before":
        with pytest.raises(ValueError, match="is a copy"):
            found(ids, labels=ids, fused_lm_head=True)


def test_experts_with_an_auxiliary_loss_are_told_how_to_share(tmp_path):
    trainer = make_trainer(tmp_path)
    trainer.aux_loss_enabled = True
    with pytest.warns(UserWarning, match="router_aux_loss_coef=0"):
        share_prefixes(trainer)


def generated():
    """TRL's generation: four rows of each of three prompts."""
    numbers = torch.arange(12)
    inputs = batch(prompt=(numbers % 3).tolist(), lengths=(1 + numbers % 7).tolist())
    return inputs | {"advantages": 0.1 * (numbers + 1), "names": numbers}


def rows(parts):
    """(name, advantage, prompt, completion) of each row."""
    fields = ("names", "advantages", "prompt_ids", "completion_ids")
    found = [zip(*(part[name] for name in fields), strict=True) for part in parts]
    return [(int(name), float(a), p.tolist(), c.tolist()) for part in found for name, a, p, c in part]


@pytest.mark.parametrize(("options", "window"), [
    ({"gradient_accumulation_steps": 4}, 4),
    ({"gradient_accumulation_steps": 2, "steps_per_generation": 4}, 2),
    ({"gradient_accumulation_steps": 1, "steps_per_generation": 4}, 1),
    ({"gradient_accumulation_steps": 4, "loss_type": "bnpo"}, None),
    ({"gradient_accumulation_steps": 4, "top_entropy_quantile": 0.4}, None),
    ({"gradient_accumulation_steps": 4, "entropy_coef": 0.1}, None),
    ({"gradient_accumulation_steps": 4, "aux_loss_enabled": True}, None),
], ids=str)  # fmt: skip
def test_rows_of_an_optimizer_step_are_ordered_by_prompt_and_stay_in_it(options, window, tmp_path):
    found, gradients = [], []
    for shared in (False, True):
        own = {name: value for name, value in options.items() if name != "aux_loss_enabled"}
        trainer = make_trainer(tmp_path, per_device_train_batch_size=3, **own)
        trainer.current_gradient_accumulation_steps = options["gradient_accumulation_steps"]
        trainer._generate_and_score_completions = lambda _: generated()
        if shared:
            trainer.aux_loss_enabled = options.get("aux_loss_enabled", False)  # as with experts
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                share_prefixes(trainer)
            trainer.aux_loss_enabled = False
        torch.manual_seed(6)
        trainer.model.zero_grad()
        for _ in range(options["gradient_accumulation_steps"]):
            trainer.training_step(trainer.model, [{}], None)
        found.append(trainer._buffered_inputs)
        gradients.append(gradient(trainer))
    theirs, ours = found
    assert (gradients[1] - gradients[0]).norm() < 1e-6 * gradients[0].norm()
    if window is None:
        assert rows(ours) == rows(theirs)
        return
    distinct = [len({tuple(prompt) for _, _, prompt, _ in rows([part])}) for part in ours]
    for start in range(0, 4, window):
        found, expected = (rows(parts[start : start + window]) for parts in (ours, theirs))
        assert sorted(found) == sorted(expected)
        together = sorted(tuple(prompt) for _, _, prompt, _ in expected)
        assert distinct[start : start + window] == [
            len({*together[n : n + 3]}) for n in range(0, 3 * window, 3)
        ]
    if window == 4:
        assert distinct == [1, 2, 2, 1]  # aaa abb bbc ccc
    assert all(torch.equal(part["num_items_in_batch"], ours[0]["num_items_in_batch"]) for part in ours)


def test_rows_with_images_are_left_in_the_order_of_trl():
    parts = [
        {
            "prompt_ids": torch.tensor([[p], [1 - p]]),
            "completion_ids": torch.tensor([[1], [1]]),
            "pixel_values": torch.zeros(5, 2),
        }
        for p in (0, 1)
    ]
    assert packing.order_by_tokens(parts) is parts


def test_generation_is_as_before(tmp_path):
    trainer, inputs = make_trainer(tmp_path), batch()
    signature = inspect.signature(trainer.model.forward)
    share_prefixes(trainer)
    assert inspect.signature(trainer.model.forward) == signature
    prompts = {"input_ids": inputs["prompt_ids"], "attention_mask": inputs["prompt_mask"]}
    plain = tiny_model().generate(**prompts, max_new_tokens=6, do_sample=False)
    trainer.model.eval()
    scores(trainer, inputs)
    assert torch.equal(trainer.model.generate(**prompts, max_new_tokens=6, do_sample=False), plain)


@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_sampling_draws_what_trl_draws_and_encodes_each_prompt_once(family, lora, tmp_path):
    model, seen = tiny_model(family), []
    trainer = make_trainer(tmp_path, model, lora=lora)
    model.register_forward_hook(
        lambda _, __, options, ___: seen.append(options["input_ids"].numel()), with_kwargs=True
    )

    def sampled(prompts):
        torch.manual_seed(0)
        seen.clear()
        return trainer._generate_single_turn(prompts, None, {}, 3)[0], seen[0]

    prompts = [[5, 6, 7, 8], [9, 10], [5, 6, 7, 8], [5], [9, 10], [5, 6, 7, 8]]
    rest = [[[5, 6], [7, 8]], [[5], [5]]]
    before = [sampled(some) for some in (prompts, *rest)]
    share_prefixes(trainer)
    after = [sampled(some) for some in (prompts, *rest)]
    assert [tokens for tokens, _ in after] == [tokens for tokens, _ in before]
    assert len({tuple(tokens) for tokens in before[0][0]}) > 3, "they were drawn"
    assert [first for _, first in before] == [24, 4, 2]
    assert [first for _, first in after] == [9, 4, 2], (
        "three prompts without their last token; nothing to share"
    )


@pytest.mark.parametrize("of_model", [False, True])
@pytest.mark.parametrize("options", [{"num_beams": 2}, {"num_return_sequences": 2}, {"use_cache": False},
                                     {"cache_implementation": "static"}, {"prefill_chunk_size": 1}])  # fmt: skip
def test_other_ways_to_sample_are_left_alone(options, of_model, tmp_path):
    trainer = make_trainer(tmp_path)
    for name, value in options.items():
        setattr(trainer.model.generation_config if of_model else trainer.generation_config, name, value)
    prompts = torch.tensor([[5, 6], [5, 6]])
    drawn = []
    for prepare in (lambda _: None, share_prefixes):
        prepare(trainer)
        torch.manual_seed(0)
        config = trainer.generation_config
        drawn.append(
            trainer.model.generate(input_ids=prompts, attention_mask=prompts > 0, generation_config=config)
        )
    assert torch.equal(*drawn)


def moe_loss(trainer, inputs):
    return {"compute_aux_loss": True}, inputs


def no_prompt(trainer, inputs):
    inputs["prompt_mask"][1] = 0
    return {}, inputs


def a_hole(trainer, inputs):
    inputs["completion_mask"][2, 3] = 0
    return {}, inputs


def images(trainer, inputs):
    return {"pixel_values": torch.zeros(6, 3, 2, 2), "num_images": [1] * 6}, inputs


def types(trainer, inputs):
    return {"token_type_ids": torch.zeros_like(arguments(inputs)[0])}, inputs


def unheard_of(trainer, inputs):
    return {"sound": torch.zeros(6, 100)}, inputs


@pytest.mark.parametrize(("obstacle", "reason"), [
    (no_prompt, "no tokens"), (a_hole, "in the midst"), (images, "more than tokens: pixel_values, num_images"),
    (types, "more than tokens: token_type_ids"), (moe_loss, "more than tokens: compute_aux_loss"),
    (unheard_of, "more than tokens: sound"),
])  # fmt: skip
def test_what_cannot_be_packed_is_left_to_trl_with_one_warning(obstacle, reason, tmp_path, monkeypatch):
    trainer = make_trainer(tmp_path)
    options, inputs = obstacle(trainer, batch())
    asked = []
    monkeypatch.setattr(trainer, METHOD, bind(trainer, asked))
    share_prefixes(trainer)
    call = getattr(trainer, METHOD)
    with pytest.warns(UserWarning, match=reason):
        first = call(trainer.model, *arguments(inputs), **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert call(trainer.model, *arguments(inputs), **options) is first
    assert [given["options"] for given in asked] == [
        {"batch_size": None, "compute_entropy": False, **options}
    ] * 2


def bind(trainer, asked):
    """A method with TRL's signature that notes its arguments."""
    answer = (torch.zeros(1), None, None)

    def method(
        model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False,
        compute_aux_loss=False, **others,
    ):  # fmt: skip
        given = {"batch_size": batch_size, "compute_entropy": compute_entropy, **others}
        asked.append({"options": given | ({"compute_aux_loss": True} if compute_aux_loss else {})})
        return answer

    method.__module__ = "trl.trainer.grpo_trainer"
    return method


def accelerator_with(trainer, plugin):
    return SimpleNamespace(
        state=SimpleNamespace(fsdp_plugin=plugin), unwrap_model=trainer.accelerator.unwrap_model
    )


def override(
    model,
    input_ids,
    attention_mask,
    logits_to_keep,
    batch_size=None,
    compute_entropy=False,
    compute_aux_loss=False,
):
    """What a class of somebody else may have made of the method."""


def test_another_version_of_trl_is_served_with_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(packing, "version", lambda _: "1.17.2")
    with pytest.warns(UserWarning, match=r"TRL 1\.16, .*TRL 1\.17\.2"):
        share_prefixes(make_trainer(tmp_path))


def with_dropout(model):
    model.model.layers[1].mlp.act_fn = torch.nn.Sequential(torch.nn.SiLU(), torch.nn.Dropout(0.1))
    return model


def test_models_and_trainers_that_cannot_share_are_refused_and_unchanged(tmp_path):
    for model, adapter, reason in (
        (build("stablelm"), None, "model type stablelm"),
        (tiny_model(attention_dropout=0.1), None, "attention_dropout=0"),
        (tiny_model(), LoraConfig(target_modules=["q_proj"], lora_dropout=0.1), "lora_dropout=0"),
        (with_dropout(tiny_model()), None, "disable_dropout=True"),
        (
            tiny_model(),
            LoraConfig(target_modules=["q_proj"], modules_to_save=["lm_head"]),
            "head is .*ModulesToSave",
        ),
        (
            tiny_model(),
            PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2),
            "PROMPT_TUNING adapter puts",
        ),
        (
            tiny_model(),
            LoraConfig(task_type="CAUSAL_LM", alora_invocation_tokens=[5]),
            "LORA adapter begins behind",
        ),
    ):
        trainer = make_trainer(tmp_path, get_peft_model(model, adapter) if adapter else model)
        with pytest.raises(ValueError, match=reason):
            share_prefixes(trainer)
        assert METHOD not in vars(trainer)
    trainer = make_trainer(tmp_path)
    forward = trainer.model.forward
    plugin = SimpleNamespace(fsdp_version=1)
    for holder, changed, reason in (
        (trainer, {METHOD: override}, "GRPOTrainer has a _get_per_token_logps_and_entropies of its own"),
        (trainer, {"is_deepspeed_enabled": True}, "DeepSpeed"),
        (
            trainer,
            {"is_fsdp_enabled": True, "accelerator": accelerator_with(trainer, plugin)},
            "version 2 alone",
        ),
        (trainer.args, {"torch_compile": True}, "torch_compile=False"),
        (trainer.args, {"neftune_noise_alpha": 5.0}, "neftune_noise_alpha"),
        (trainer.args, {"_n_gpu": 2}, "several GPUs by one process"),
    ):
        with pytest.MonkeyPatch.context() as patch:
            for name, value in changed.items():
                patch.setattr(holder, name, value)
            with pytest.raises(ValueError, match=reason):
                share_prefixes(trainer)
        assert trainer.model.forward == forward
    setattr(trainer, METHOD, lambda model, input_ids, images: None)
    with pytest.raises(ValueError, match=r"GRPOTrainer.* of TRL 1\.16"):
        share_prefixes(trainer)
    with pytest.raises(ValueError, match="GRPOTrainer.*object takes None"):
        share_prefixes(object())
