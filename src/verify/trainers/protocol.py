"""Files that an adapter reads and writes, and the passes that adapters of loss functions share.

IN holds `batch.json`, `settings.json` and `model/`; the adapter writes `result.json` and
`gradient_METHOD.safetensors` to OUT. `Exchange` documents their contents.
"""

import json
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

UNBOUNDED = 1e30
"""Clip range that never bounds a ratio."""


class UnsupportedMethodError(Exception):
    """A trainer has no such method, or can't run the method on this batch; the message is the reason."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One response of the batch."""

    prompt_ids: list[int]
    """Tokens of the prompt that the response was sampled from; at least one."""
    response_ids: list[int]
    """Tokens of the response; at least one."""
    sampled_logprobs: list[float]
    """Log-probs of the response's tokens under the weights that sampled the response, in nats.

    Trainers get these log-probs as the old ones of the policy ratio."""
    reward: float | None
    """Reward; None if the response was not scored."""
    question: int
    """Number of the original question."""
    wording: int
    """Number of the wording of the question; a prompt is a question in one wording."""
    truncated: bool
    """Whether the response ended at the limit of tokens."""
    reference_logprobs: list[float] | None = None
    """Log-probs of the response's tokens under the reference policy, in nats; None if there is none."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What to run, and how. The methods' own settings are read by `MethodSettings`."""

    dtype: str
    """Dtype of the model's weights and of the passes: `float32` or `float64`."""
    temperature: float
    """Sampling temperature; logits are divided by this value before log-probs are taken."""
    micro_batch_rows: int | None
    """Responses in a micro-batch; the last one may have fewer. None puts all in one."""
    max_response_tokens: int
    """Limit of tokens of a response."""
    methods: dict[str, dict[str, Any]]
    """Entry, by default a method's name → fields of `MethodSettings`."""


@dataclass(frozen=True, kw_only=True)
class MethodSettings:
    """Settings that methods share. A method reads the ones that it has."""

    method: str | None = None
    """Name of the method; None if the entry has the method's name."""
    clip_low: float | None = 0.2
    """Lower clip range; None sets no lower bound."""
    clip_high: float | None = 0.2
    """Upper clip range; None sets no upper bound."""
    kl_coefficient: float = 0.0
    """Coefficient of the divergence from the reference policy."""
    entropy_coefficient: float = 0.0
    """Coefficient of the entropy; positive values reward entropy."""
    share: float = 0.0
    """Share of tokens that Clip-Cov leaves out and KL-Cov restrains, 0..1."""
    low: float = 0.0
    """Smallest covariance that Clip-Cov leaves out."""
    high: float = 0.0
    """Largest covariance that Clip-Cov leaves out."""
    coefficient: float = 0.0
    """Coefficient of KL-Cov's penalty."""
    options: dict[str, Any] = field(default_factory=dict)
    """The trainer's own options, by the trainer's names, in place of the adapter's choice."""

    @property
    def clip_range(self) -> tuple[float, float]:
        """Lower and upper clip range, `UNBOUNDED` for no bound."""
        low = UNBOUNDED if self.clip_low is None else self.clip_low
        high = UNBOUNDED if self.clip_high is None else self.clip_high
        return low, high

    def with_defaults(self, **defaults: Any) -> dict[str, Any]:
        """Return the trainer's options: `defaults`, replaced by `options` where given.

        Raises:
            ValueError: if `options` names an option that `defaults` does not.
        """
        unknown = sorted(set(self.options) - set(defaults))
        if unknown:
            raise ValueError(f"Expected options among {sorted(defaults)}, but got {unknown}.")
        return {**defaults, **self.options}


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The rows as padded tensors: prompts padded on the left, responses on the right.

    R is the number of responses, P and T are the longest prompt and the longest response.
    """

    rows: list[Row]
    """The R rows."""
    prompt_ids: Tensor
    """[R, P] long."""
    prompt_mask: Tensor
    """[R, P] bool, true at tokens."""
    response_ids: Tensor
    """[R, T] long."""
    mask: Tensor
    """[R, T] bool, true at tokens of responses."""
    old_logprobs: Tensor
    """[R, T] float, 0 at padding."""
    reference_logprobs: Tensor | None
    """[R, T] float, 0 at padding; None if a row has none."""

    @classmethod
    def of(cls, rows: list[Row], dtype: torch.dtype) -> "Batch":
        """Pad the rows; log-probs get the given dtype."""
        prompts = [row.prompt_ids for row in rows]
        responses = [row.response_ids for row in rows]
        old = [row.sampled_logprobs for row in rows]
        reference = [row.reference_logprobs for row in rows if row.reference_logprobs is not None]
        return cls(
            rows=rows,
            prompt_ids=pad(prompts, torch.long, left=True),
            prompt_mask=pad([[1] * len(prompt) for prompt in prompts], torch.bool, left=True),
            response_ids=pad(responses, torch.long),
            mask=pad([[1] * len(response) for response in responses], torch.bool),
            old_logprobs=pad(old, dtype),
            reference_logprobs=pad(reference, dtype) if len(reference) == len(rows) else None,
        )

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def lengths(self) -> Tensor:
        """[R] long numbers of response tokens."""
        return self.mask.sum(1)

    @property
    def prompts(self) -> list[str]:
        """Name of each row's prompt: question and wording."""
        return [f"{row.question}.{row.wording}" for row in self.rows]

    def rewards(self, dtype: torch.dtype) -> Tensor:
        """Return the [R] rewards.

        Raises:
            UnsupportedMethodError: if a row has no reward.
        """
        without = [number for number, row in enumerate(self.rows) if row.reward is None]
        if without:
            raise UnsupportedMethodError(f"needs the reward of every response, but rows {without} have none")
        return torch.tensor([row.reward for row in self.rows], dtype=dtype)

    def token_rewards(self, dtype: torch.dtype) -> Tensor:
        """Return the rewards as [R, T], at the last token of each response and 0 elsewhere.

        Raises:
            UnsupportedMethodError: if a row has no reward.
        """
        rewards = torch.zeros(self.mask.shape, dtype=dtype)
        rewards[torch.arange(len(self)), self.lengths - 1] = self.rewards(dtype)
        return rewards

    def require_reference(self) -> None:
        """Check that every row has log-probs of a reference policy.

        Raises:
            ValueError: if a row has none.
        """
        if self.reference_logprobs is None:
            raise ValueError("Expected reference_logprobs in every row for kl_coefficient > 0, but got none.")

    def part(self, start: int, stop: int) -> "Batch":
        """Return rows `start` to `stop`, padded to the width of the whole batch."""
        reference = self.reference_logprobs
        return Batch(
            rows=self.rows[start:stop],
            prompt_ids=self.prompt_ids[start:stop],
            prompt_mask=self.prompt_mask[start:stop],
            response_ids=self.response_ids[start:stop],
            mask=self.mask[start:stop],
            old_logprobs=self.old_logprobs[start:stop],
            reference_logprobs=None if reference is None else reference[start:stop],
        )


def pad(rows: list[Any], dtype: torch.dtype, left: bool = False) -> Tensor:
    """Stack lists of numbers to a tensor padded with 0, on the right unless `left`.

    >>> pad([[1, 2], [3]], torch.long, left=True)
    tensor([[1, 2],
            [0, 3]])
    """
    width = max(len(row) for row in rows)
    padded = torch.zeros(len(rows), width, dtype=dtype)
    for number, row in enumerate(rows):
        place = slice(width - len(row), width) if left else slice(len(row))
        padded[number, place] = torch.tensor(row, dtype=dtype)
    return padded


class Scores(NamedTuple):
    """What a pass of the model says about a micro-batch; B is its number of responses."""

    logits: Tensor
    """[B, T, V] float, divided by the temperature; row t predicts token t of the response."""
    logprobs: Tensor
    """[B, T] float log-probs of the response's tokens, in nats."""


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """What a loss of a micro-batch is computed from."""

    start: int
    """Number of the first row."""
    rows: Batch
    """The responses."""
    advantages: Tensor
    """[B, T] float."""
    scores: Scores
    """Scores under the policy, with a gradient."""
    whole: Batch
    """The batch that the micro-batch is a part of, for its counts."""


def logprobs_of(logits: Tensor, ids: Tensor) -> Tensor:
    """Return the log-probs of `ids` under `logits`, of the shape of `ids`."""
    return logits.log_softmax(-1).gather(-1, ids[..., None])[..., 0]


def mean_of(parts: list[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean of each metric over micro-batches.

    >>> mean_of([{"a": 1.0}, {"a": 2.0}])
    {'a': 1.5}
    """
    names = parts[0] if parts else {}
    return {name: sum(float(part[name]) for part in parts) / len(parts) for name in names}


@dataclass(frozen=True, kw_only=True)
class Method:
    """One method in a trainer's own code."""

    advantages: Tensor
    """[R, T] float."""
    loss: Callable[[MicroBatch], tuple[Tensor, Mapping[str, Any]]]
    """Micro-batch → its part of the loss, whose sum over micro-batches is the loss, and its metrics."""
    options: Mapping[str, Any]
    """The trainer's own options, for the result."""
    logprobs: Callable[[Tensor, Tensor], Tensor] = logprobs_of
    """Logits and ids → log-probs: the trainer's own function."""
    reduce: Callable[[list[Mapping[str, Any]]], dict[str, float]] = mean_of
    """Metrics of the micro-batches → metrics, as the trainer logs them."""


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """One run of an adapter: what was asked, and where the answer goes.

    `IN/batch.json` is `{"rows": [...]}` with the fields of `Row`, `IN/settings.json` has those of `Settings`,
    and `IN/model` is the policy as `save_pretrained` writes it.

    `OUT/result.json` is `{"trainer", "version", "methods": {method: {...}}}`, where a method has `supported`
    (true, or the reason why not), `advantages` and `token_weights` (a list per row, a number per token of the
    response; a weight is the derivative of the loss with respect to the token's log-prob), `loss`, `metrics`
    and `options` (both by the trainer's names). `OUT/gradient_METHOD.safetensors` is the gradient of the loss
    by the parameter's name. METHOD is the entry's name in the settings.
    """

    source: Path
    """The folder IN."""
    target: Path
    """The folder OUT."""
    batch: Batch
    """The batch of `IN/batch.json`."""
    settings: Settings
    """The settings of `IN/settings.json`."""

    @classmethod
    def read(cls, source: Path, target: Path) -> "Exchange":
        """Read the batch and the settings from `source`; results go to `target`."""
        settings = Settings(**json.loads((source / "settings.json").read_text()))
        rows = json.loads((source / "batch.json").read_text())["rows"]
        dtype = getattr(torch, settings.dtype)
        return cls(
            source=source,
            target=target,
            batch=Batch.of([Row(**row) for row in rows], dtype),
            settings=settings,
        )

    @property
    def micro_batch_rows(self) -> int:
        """Responses in a micro-batch."""
        return self.settings.micro_batch_rows or len(self.batch)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the passes."""
        dtype: torch.dtype = getattr(torch, self.settings.dtype)
        return dtype

    def model(self) -> PreTrainedModel:
        """Load the policy, without dropout."""
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            self.source / "model", dtype=self.dtype, trust_remote_code=False
        )
        model.eval()
        return model

    def run(
        self,
        trainer: str,
        version: str,
        methods: Mapping[str, Callable[["Exchange", MethodSettings], Method]],
    ) -> None:
        """Run every method asked for that the trainer has, and write the results.

        If the trainer raises an exception in a method, the exception is the reason in the result.
        """
        model = self.model()
        results: dict[str, dict[str, Any]] = {}
        for entry, given in self.settings.methods.items():
            settings = MethodSettings(**given)
            name = settings.method or entry
            try:
                if name not in methods:
                    raise UnsupportedMethodError(f"{trainer} {version} has no {name}")
                results[entry] = self._result(entry, model, methods[name](self, settings))
            except UnsupportedMethodError as reason:
                results[entry] = {"supported": str(reason)}
            except Exception as error:  # of the trainer's code; the other methods still count
                traceback.print_exc()
                results[entry] = {"supported": f"{type(error).__name__}: {error}"}
        result = {"trainer": trainer, "version": version, "methods": results}
        self.target.mkdir(parents=True, exist_ok=True)
        (self.target / "result.json").write_text(json.dumps(result))

    def _result(self, entry: str, model: PreTrainedModel, method: Method) -> dict[str, Any]:
        """Return the entry of a method in the result, and write its gradient."""
        torch.manual_seed(0)
        model.zero_grad()
        loss = 0.0
        parts = []
        weights = torch.zeros_like(method.advantages)
        for start in range(0, len(self.batch), self.micro_batch_rows):
            stop = min(start + self.micro_batch_rows, len(self.batch))
            rows = self.batch.part(start, stop)
            logits = response_logits(model, rows, self.settings.temperature)
            logprobs = method.logprobs(logits, rows.response_ids)
            logprobs.retain_grad()
            scores = Scores(logits, logprobs)
            advantages = method.advantages[start:stop]
            micro = MicroBatch(start=start, rows=rows, advantages=advantages, scores=scores, whole=self.batch)
            part, metrics = method.loss(micro)
            part.backward()
            loss += part.item()
            parts.append(metrics)
            if logprobs.grad is not None:
                weights[start:stop] = logprobs.grad
        self._write_gradient(entry, model)
        return {
            "supported": True,
            "advantages": self._unpadded(method.advantages),
            "token_weights": self._unpadded(weights),
            "loss": loss,
            "metrics": method.reduce(parts),
            "options": dict(method.options),
        }

    def _write_gradient(self, entry: str, model: PreTrainedModel) -> None:
        """Write the gradient of every parameter, zeros for a parameter without one."""
        self.target.mkdir(parents=True, exist_ok=True)
        gradient = {}
        for parameter, values in model.named_parameters():
            gradient[parameter] = torch.zeros_like(values) if values.grad is None else values.grad.clone()
        save_file(gradient, self.target / f"gradient_{entry}.safetensors")

    def _unpadded(self, values: Tensor) -> list[list[float]]:
        """Return the values at each response's tokens."""
        rows = []
        for row, length in zip(values.tolist(), self.batch.lengths.tolist(), strict=True):
            rows.append(row[:length])
        return rows


def response_logits(model: PreTrainedModel, rows: Batch, temperature: float) -> Tensor:
    """Return [B, T, V] logits of the responses' tokens, divided by the temperature, from a padded pass."""
    ids = torch.cat([rows.prompt_ids, rows.response_ids], 1)
    mask = torch.cat([rows.prompt_mask, rows.mask], 1)
    positions = (mask.long().cumsum(1) - 1).clamp(min=0)
    output = model(input_ids=ids, attention_mask=mask.long(), position_ids=positions, use_cache=False)
    width = rows.prompt_ids.shape[1]
    logits: Tensor = output.logits[:, width - 1 : -1]
    return logits / temperature
