"""TRL's `GRPOTrainer`, `RLOOTrainer` and `GMPOTrainer` on the batch: one step of training, with its gradient.

The trainers are whole: data loader, groups, rewards, advantages, shuffling, micro-batches, loss and backward
are TRL's. Three things are handed to them: the recorded responses where they would sample, the recorded
log-probs where they would score the sampled responses, and the recorded log-probs of the reference.
"""

# mypy: disable-error-code="attr-defined,name-defined,misc"
# TRL loads its classes lazily, so that their types are not known.

import gc
import json
import math
import os
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import trl
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, TrainerCallback
from trl.experimental.gmpo import GMPOConfig, GMPOTrainer

from .protocol import Exchange, MethodSettings, UnsupportedMethodError

NEVER = 1e6
"""Clip range of a bound that never acts."""


class Recorded:
    """Mixin of a TRL trainer that takes responses, log-probs and rewards from the batch."""

    exchange: Exchange
    rows: list[int]
    """Row of the batch of each response of the generation, in TRL's order."""
    weights: dict[int, list[float]]
    """Row → derivative of the loss by the log-prob of each token."""
    found: dict[str, Any]
    """Advantages and losses of the step."""
    beta: float
    """Coefficient of the divergence in the loss."""

    def _generate_single_turn(self, prompt_ids: list[list[int]], *_: Any, **__: Any) -> Any:
        """Return the recorded responses to the prompts, each once, in the order of the batch."""
        waiting = defaultdict(list)
        for number, row in enumerate(self.exchange.batch.rows):
            waiting[tuple(row.prompt_ids)].append(number)
        self.rows = [waiting[tuple(ids)].pop(0) for ids in prompt_ids]
        completions = [self.exchange.batch.rows[row].response_ids for row in self.rows]
        return completions if isinstance(self, trl.RLOOTrainer) else (completions, None)

    def rewards(self, **_: Any) -> list[float | None]:
        """Return the recorded rewards of the responses, in TRL's order."""
        return [self.exchange.batch.rows[row].reward for row in self.rows]

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        beta = self.beta
        self.beta = 0.0  # TRL would score the responses with the model that it loaded as the reference
        output = super()._generate_and_score_completions(inputs)
        self.beta = beta
        rows = torch.tensor(self.rows)
        batch = self.exchange.batch
        width = output["completion_ids"].shape[1]
        old = batch.old_logprobs[rows][:, :width]
        if isinstance(self, trl.RLOOTrainer):
            output["old_logps"] = (old * output["completion_mask"]).sum(1)
        else:
            output["old_per_token_logps"] = old
        if beta:
            assert batch.reference_logprobs is not None
            output["ref_per_token_logps"] = batch.reference_logprobs[rows][:, :width]
        output["row"] = rows
        self.found["advantages"] = dict(zip(self.rows, output["advantages"].tolist(), strict=True))
        return output

    def _get_per_token_logps_and_entropies(self, *arguments: Any, **options: Any) -> Any:
        scores = super()._get_per_token_logps_and_entropies(*arguments, **options)
        if torch.is_grad_enabled() and scores[0].requires_grad:
            scores[0].retain_grad()
            self.found["logprobs"] = scores[0]
        return scores

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        """Make one micro-batch's forward and backward, and keep its loss and weights."""
        loss = super().training_step(model, inputs, num_items_in_batch)
        micro = self._buffered_inputs[(self._step - 1) % self.args.steps_per_generation]
        gradient = self.found["logprobs"].grad
        for row, values in zip(micro["row"].tolist(), gradient, strict=True):
            length = len(self.exchange.batch.rows[row].response_ids)
            self.weights[row] = values[:length].tolist()
        self.found["loss"] = self.found.get("loss", 0.0) + float(loss)
        return loss


class RecordedGRPO(Recorded, trl.GRPOTrainer):
    """GRPO's trainer on the recorded batch."""


class RecordedRLOO(Recorded, trl.RLOOTrainer):
    """RLOO's trainer on the recorded batch."""


class RecordedGMPO(Recorded, GMPOTrainer):
    """GMPO's trainer on the recorded batch."""


KINDS: dict[str, tuple[type[Any], type[Any]]] = {
    "grpo": (RecordedGRPO, trl.GRPOConfig),
    "rloo": (RecordedRLOO, trl.RLOOConfig),
    "gmpo": (RecordedGMPO, GMPOConfig),
}
"""Trainer → class and configuration."""


def bounds(given: MethodSettings) -> dict[str, Any]:
    """Return TRL's clip range."""
    low = NEVER if given.clip_low is None else given.clip_low
    high = NEVER if given.clip_high is None else given.clip_high
    return {"epsilon": low, "epsilon_high": high}


def cispo(given: MethodSettings) -> dict[str, Any]:
    """Return TRL's settings of CISPO, whose `epsilon_high` bounds the weight itself."""
    if given.clip_low is not None:
        raise UnsupportedMethodError("its CISPO has no lower bound; set loss.clip_low=null")
    high = NEVER if given.clip_high is None else 1 + given.clip_high
    return {"loss_type": "cispo", "epsilon_high": high}


METHODS: dict[str, tuple[str, Callable[[MethodSettings], dict[str, Any]]]] = {
    "grpo": ("grpo", lambda given: {"loss_type": "grpo", **bounds(given)}),
    "dr_grpo": ("grpo", lambda given: {"loss_type": "dr_grpo", "scale_rewards": "none", **bounds(given)}),
    "dapo": ("grpo", lambda given: {"loss_type": "dapo", **bounds(given)}),
    "gspo": (
        "grpo",
        lambda given: {"loss_type": "grpo", "importance_sampling_level": "sequence", **bounds(given)},
    ),
    "cispo": ("grpo", cispo),
    "rloo": ("rloo", bounds),
    "gmpo": ("gmpo", bounds),
}
"""Method → trainer, and its settings for the method, as TRL's documentation has them."""


class Gradient(TrainerCallback):
    """Callback that keeps the gradient of the step."""

    def __init__(self) -> None:
        self.values: dict[str, Tensor] = {}
        self.metrics: dict[str, float] = {}

    def on_pre_optimizer_step(self, *_: Any, model: Any = None, **__: Any) -> None:
        """Copy the gradient before the optimizer's step."""
        for name, parameter in model.named_parameters():
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
            self.values[name] = gradient

    def on_log(self, *_: Any, logs: Any = None, **__: Any) -> None:
        """Keep the first metrics that are logged, which are those of the step."""
        if not self.metrics:
            numbers = {name: value for name, value in logs.items() if isinstance(value, int | float)}
            self.metrics = {name: value for name, value in numbers.items() if math.isfinite(value)}


def word(number: int) -> str:
    """Return the word of a token; no word is a part of another."""
    return f"<{number}>"


def tokenizer(size: int, pad: int | None, eos: int | None) -> PreTrainedTokenizerFast:
    """Return a tokenizer whose words are those of `word`."""
    words = {word(number): number for number in range(size)}
    made = Tokenizer(models.WordLevel(words, unk_token=word(0)))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = {"pad_token": word(pad or 0), "eos_token": word(1 if eos is None else eos)}
    return PreTrainedTokenizerFast(tokenizer_object=made, **names)


def samples_per_prompt(exchange: Exchange) -> int:
    """Return the number of responses to each prompt.

    Raises:
        UnsupportedMethodError: if prompts have different numbers of responses, or one response.
    """
    counts: dict[str, int] = defaultdict(int)
    for prompt in exchange.batch.prompts:
        counts[prompt] += 1
    sizes = sorted(set(counts.values()))
    if len(sizes) > 1 or sizes[0] < 2:
        raise UnsupportedMethodError(
            f"needs the same number of responses to every prompt, two or more, but the batch has {sizes}"
        )
    return sizes[0]


def step(exchange: Exchange, name: str, given: MethodSettings, folder: Path) -> dict[str, Any]:
    """Train one step of a method, write its gradient, and return its entry in the result."""
    if name not in METHODS:
        raise UnsupportedMethodError(f"trl {trl.__version__} has no {name}")
    trainer_name, options_of = METHODS[name]
    kind, config = KINDS[trainer_name]
    own = given.with_defaults(**options_of(given), **extra(trainer_name, given))
    samples = samples_per_prompt(exchange)
    count = len(exchange.batch)
    rows = min(exchange.micro_batch_rows, count)
    if count % rows:
        raise UnsupportedMethodError(
            f"needs micro-batches of equal size, but {count} responses are not a multiple of micro_batch_rows={rows}"
        )
    arguments = config(
        output_dir=str(folder), per_device_train_batch_size=rows, gradient_accumulation_steps=count // rows,
        num_generations=samples, max_completion_length=exchange.settings.max_response_tokens,
        temperature=exchange.settings.temperature, learning_rate=0.0, optim="sgd", max_steps=1, max_grad_norm=0.0,
        logging_steps=1, save_strategy="no", report_to=[], use_cpu=True, bf16=False, gradient_checkpointing=False,
        disable_tqdm=True, shuffle_dataset=False, beta=0.0, seed=0, **own,
    )  # fmt: skip
    model = exchange.model().train()
    model.set_attn_implementation("sdpa")
    first = dict(zip(exchange.batch.prompts, (row.prompt_ids for row in exchange.batch.rows), strict=True))
    texts = [" ".join(map(word, ids)) for ids in first.values()]
    holder: list[Any] = []

    def reward(**columns: Any) -> Any:
        return holder[0].rewards(**columns)

    keeper = Gradient()
    trainer = kind(
        model=model,
        reward_funcs=reward,
        args=arguments,
        train_dataset=Dataset.from_list([{"prompt": text} for text in texts]),
        processing_class=tokenizer(
            model.config.vocab_size, model.config.pad_token_id, model.config.eos_token_id
        ),
        callbacks=[keeper],
    )
    holder.append(trainer)
    trainer.exchange, trainer.weights, trainer.found = exchange, {}, {}
    trainer.beta = given.kl_coefficient  # set now: at construction, TRL would load a reference
    trainer.train()
    lengths = exchange.batch.lengths.tolist()
    exchange.target.mkdir(parents=True, exist_ok=True)
    save_file(keeper.values, exchange.target / f"gradient_{name}.safetensors")
    return {
        "supported": True,
        "advantages": [[trainer.found["advantages"][row]] * length for row, length in enumerate(lengths)],
        "token_weights": [trainer.weights[row] for row in range(count)],
        "loss": trainer.found["loss"],
        "metrics": keeper.metrics,
        "options": {"trainer": kind.__mro__[2].__name__, **own},
    }


def extra(trainer: str, given: MethodSettings) -> dict[str, Any]:
    """Return the settings that only some trainers have.

    Raises:
        UnsupportedMethodError: if the trainer has no term that the method asks for.
    """
    if trainer == "rloo" and given.kl_coefficient:
        raise UnsupportedMethodError(
            "takes the divergence off the reward, which recorded rewards do not have"
        )
    if trainer != "grpo" and given.entropy_coefficient:
        raise UnsupportedMethodError("has no entropy bonus in this trainer")
    return {"entropy_coef": given.entropy_coefficient} if given.entropy_coefficient else {}


def run(exchange: Exchange) -> None:
    """Run every method asked for that TRL has, and write the results."""
    results = {}
    gc.freeze()  # Trainer collects garbage in every run, among all that the imports have left
    with tempfile.TemporaryDirectory() as folder:
        for name, given in exchange.settings.methods.items():
            try:
                results[name] = step(exchange, name, MethodSettings(**given), Path(folder))
            except UnsupportedMethodError as reason:
                results[name] = {"supported": str(reason)}
    exchange.target.mkdir(parents=True, exist_ok=True)
    result = {"trainer": "trl", "version": trl.__version__, "methods": results}
    (exchange.target / "result.json").write_text(json.dumps(result))
