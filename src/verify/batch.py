"""The batch of rollouts that goes through every trainer: of a file, of a run, or a small one made here.

A file has one response per row, as JSON lines or Parquet, with the fields of `Row`:

    {"prompt_ids": [5, 9], "response_ids": [7, 3, 1], "sampled_logprobs": [-0.2, -1.1, -0.4],
     "reward": 1.0, "question": 0, "wording": 0, "truncated": false}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from ..foreign import Count, ForeignDataError, Message, read, read_json
from ..seeds import derive_seed
from ..types import Prompt, Rollouts
from ..types.data import LARGEST_REWARD

Tokens = Annotated[list[Count], Field(min_length=1)]
LogProb = Annotated[float, Field(le=1e-4, allow_inf_nan=False)]
"""A log-probability; rounding may leave it slightly above 0."""
Reward = Annotated[float, Field(ge=-LARGEST_REWARD, le=LARGEST_REWARD, allow_inf_nan=False)]
REMEDY = "Correct the row; `tagrpo.verify.batch` describes the format."


class Row(Message):
    """One response of a batch."""

    prompt_ids: Tokens
    """Tokens of the sampled prompt."""
    response_ids: Tokens
    """Response tokens, the stop token included."""
    sampled_logprobs: list[LogProb]
    """Log-prob of each response token under the policy that sampled it, nats, at the sampling temperature."""
    reward: Reward | None
    """Reward; null if no reward function has scored the response."""
    question: Count
    """Number of the original question."""
    wording: Count
    """0 if the original question was sampled, n ≥ 1 for its n-th rephrasing."""
    truncated: bool = False
    """Whether the length limit, not a stop token, ended the response."""


@dataclass(frozen=True)
class Batch:
    """Responses that go through every trainer, ordered by question, then by wording."""

    rows: tuple[Row, ...]
    name: str
    """Origin, for messages and tables."""
    model: str | None = None
    """Folder of the model that the log-probs belong to; None if it is not known."""

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def groups(self) -> list[tuple[int, int]]:
        """(question, wording) of each distinct prompt, in the order of the rows."""
        return list(dict.fromkeys((row.question, row.wording) for row in self.rows))

    @cached_property
    def lengths(self) -> list[int]:
        """Tokens of each response."""
        return [len(row.response_ids) for row in self.rows]

    @property
    def vocabulary(self) -> int:
        """Size of the smallest vocabulary with every token of the batch."""
        return 1 + max(max(*row.prompt_ids, *row.response_ids) for row in self.rows)

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt with its response."""
        return max(len(row.prompt_ids) + len(row.response_ids) for row in self.rows)

    def with_logprobs(self, logprobs: Sequence[Sequence[float]]) -> Batch:
        """Return the batch with other sampled log-probs, one list per response."""
        rows = [
            row.model_copy(update={"sampled_logprobs": [min(value, 0.0) for value in values]})
            for row, values in zip(self.rows, logprobs, strict=True)
        ]
        return replace(self, rows=tuple(rows))

    def in_dense_vocabulary(self) -> Batch:
        """Return the batch with tokens renumbered without gaps, from 0 in the order of their numbers."""
        used = sorted({token for row in self.rows for token in (*row.prompt_ids, *row.response_ids)})
        number = {token: place for place, token in enumerate(used)}
        rows = []
        for row in self.rows:
            prompt = [number[token] for token in row.prompt_ids]
            response = [number[token] for token in row.response_ids]
            rows.append(row.model_copy(update={"prompt_ids": prompt, "response_ids": response}))
        return replace(self, rows=tuple(rows))

    def rollouts(self) -> Rollouts:
        """Return the batch as the rollouts of one rank.

        A response without a reward has the mean reward of the other responses to its question, as in
        training.
        """
        questions = list(dict.fromkeys(question for question, _ in self.groups))
        prompts = []
        for question, wording in self.groups:
            own = self._prompt_of(question, wording)
            anchor = self._prompt_of(question, 0, default=own)
            count = sum((row.question, row.wording) == (question, wording) for row in self.rows)
            place = questions.index(question)
            prompts.append(Prompt(place, wording, "", "", own, anchor, count))
        prompt_of = {group: place for place, group in enumerate(self.groups)}
        prompt = torch.tensor([prompt_of[row.question, row.wording] for row in self.rows])
        rewards = torch.tensor(list(self._rewards()))
        count = len(self.rows)
        return Rollouts(
            prompts=prompts,
            prompt=prompt,
            question=torch.tensor([questions.index(row.question) for row in self.rows]),
            rephrasing=torch.tensor([row.wording for row in self.rows]),
            token_ids=[torch.tensor(row.response_ids) for row in self.rows],
            logprobs=[torch.tensor(row.sampled_logprobs) for row in self.rows],
            truncated=torch.tensor([row.truncated for row in self.rows]),
            text=[""] * count,
            correct=rewards > 0,
            answers=[None] * count,
            rewards=rewards,
            replayed=torch.zeros(count, dtype=torch.bool),
            staleness=torch.zeros(count, dtype=torch.long),
        )

    def _prompt_of(self, question: int, wording: int, default: Tensor | None = None) -> Tensor:
        """Return the tokens of a prompt, or `default` if the batch does not have the prompt."""
        for row in self.rows:
            if (row.question, row.wording) == (question, wording):
                return torch.tensor(row.prompt_ids)
        assert default is not None
        return default

    def _rewards(self) -> Iterator[float]:
        for row in self.rows:
            if row.reward is not None:
                yield row.reward
                continue
            others = [r.reward for r in self.rows if r.question == row.question and r.reward is not None]
            yield sum(others) / len(others) if others else 0.0


def read_batch(path: Path, iteration: int | None = None, questions: int | None = None) -> Batch:
    """Read the batch of a run's directory, or of a file of JSON lines or Parquet.

    Args:
        path: Directory of a run, or a file whose name ends in `.jsonl` or `.parquet`.
        iteration: Iteration of the run; None takes the last recorded one.
        questions: Number of questions to keep, the first of the batch; None keeps all.

    Raises:
        FileNotFoundError: if there is nothing at `path`, or the run has no recorded rollouts.
        ForeignDataError: if a row breaks the format. The message names file, row and field.
    """
    if path.is_dir():
        batch = of_run(path, iteration)
    elif path.suffix in (".jsonl", ".parquet") and path.is_file():
        contents = _lines(path) if path.suffix == ".jsonl" else _parquet(path)
        batch = Batch(tuple(contents), path.name)
    else:
        raise FileNotFoundError(
            f"Expected batch to be the directory of a run, or a file that ends in .jsonl or .parquet, but "
            f"found {'another file' if path.exists() else 'nothing'} at {path}. Correct batch."
        )
    return ordered(checked(batch), questions)


def _lines(path: Path) -> Iterator[Row]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield read_json(Row, line, source=f"{path} row {number}", remedy=REMEDY)


def _parquet(path: Path) -> Iterator[Row]:
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except (OSError, ValueError) as error:
        raise ForeignDataError(
            f"Expected a Parquet file at {path}, but it can't be read: {error}. Correct batch."
        ) from error
    missing = sorted(set(Row.model_fields) - {"truncated"} - set(table.column_names))
    if missing:
        raise ForeignDataError(f"Expected {path} to have the columns {', '.join(missing)}. {REMEDY}")
    for number, content in enumerate(table.to_pylist(), 1):
        yield read(Row, content, source=f"{path} row {number}", remedy=REMEDY)


def checked(batch: Batch) -> Batch:
    """Return the batch if its rows agree with one another.

    Raises:
        ForeignDataError: if the batch is empty, a row has another number of log-probs than of tokens, or two
            rows of one wording have different prompts. The message names the row.
    """
    if not batch.rows:
        raise ForeignDataError(f"Expected {batch.name} to have at least one row, but it is empty.")
    prompts: dict[tuple[int, int], list[int]] = {}
    for number, row in enumerate(batch.rows, 1):
        where = f"{batch.name} row {number}"
        if len(row.sampled_logprobs) != len(row.response_ids):
            raise ForeignDataError(
                f"Expected {where} to have a sampled log-prob for each of {len(row.response_ids)} response "
                f"tokens, but got {len(row.sampled_logprobs)}. {REMEDY}"
            )
        if prompts.setdefault((row.question, row.wording), row.prompt_ids) != row.prompt_ids:
            raise ForeignDataError(
                f"Expected {where} to have the prompt_ids of the earlier rows of question {row.question}, "
                f"wording {row.wording}, but got others. Give another prompt a wording of its own. {REMEDY}"
            )
    return batch


def ordered(batch: Batch, questions: int | None = None) -> Batch:
    """Return the batch ordered by question and wording, with the first `questions` questions alone."""
    numbers = list(dict.fromkeys(row.question for row in batch.rows))[:questions]
    kept = [row for row in batch.rows if row.question in numbers]
    kept.sort(key=lambda row: (numbers.index(row.question), row.wording))
    return replace(batch, rows=tuple(kept))


def of_run(run: Path, iteration: int | None = None) -> Batch:
    """Return the recorded rollouts of one iteration of a run, of all ranks.

    Prompts are encoded again from their texts.

    Raises:
        FileNotFoundError: if the run has no recorded rollouts of the iteration, or no tokenizer is found.
        ForeignDataError: if a recorded file can't be read, lacks tokens, or has a row that breaks the format.
    """
    recorded = {int(path.stem.partition("-")[0]): None for path in sorted(run.glob("rollouts/*-*.parquet"))}
    chosen = max(recorded, default=None) if iteration is None else iteration
    if chosen not in recorded:
        found = f"iterations {min(recorded)} to {max(recorded)}" if recorded else "none"
        which = "" if iteration is None else f" of iteration {iteration}"
        raise FileNotFoundError(
            f"Expected recorded rollouts{which} in {run / 'rollouts'}, but found {found}. Set `iteration` to one "
            "of these, or train with the callback `recorder`, which callbacks=default has."
        )
    model = _model_folder(run)
    tokenizer = _tokenizer(run, model)
    rows: list[Row] = []
    numbers: dict[Any, int] = {}
    wordings: dict[Any, dict[Any, int]] = {}
    for file in sorted(run.glob(f"rollouts/{chosen:06d}-*.parquet")):
        for number, content in enumerate(_recorded(file), 1):
            key = (file.name.rpartition("-")[2], content["question"])
            question = numbers.setdefault(key, len(numbers))
            wording = _wording(wordings.setdefault(question, {}), content)
            row = {
                "prompt_ids": tokenizer(content["prompt"], add_special_tokens=False)["input_ids"],
                "response_ids": content["token_ids"],
                "sampled_logprobs": content["token_logprobs"],
                "reward": content["reward"],
                "question": question,
                "wording": wording,
                "truncated": content["truncated"],
            }
            rows.append(read(Row, row, source=f"{file} row {number}", remedy="Choose another iteration."))
    return Batch(tuple(rows), f"{run}, iteration {chosen}", str(model) if model else None)


def _wording(known: dict[Any, int], content: Mapping[str, Any]) -> int:
    """Return the number of a prompt among those of its question: 0 for the original."""
    original = content["rephrasing"] == 0
    taken = 0 in known.values()
    start = 0 if original and not taken else max([0, *known.values()]) + 1
    return known.setdefault((content["rephrasing"], content["prompt"]), start)


def _recorded(file: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    names = ["question", "rephrasing", "prompt", "reward", "truncated", "token_ids", "token_logprobs"]
    try:
        missing = sorted(set(names).difference(pq.read_schema(file).names))
        if not missing:
            rows: list[dict[str, Any]] = pq.read_table(file, columns=names).to_pylist()
            return rows
    except (OSError, ValueError) as error:
        raise ForeignDataError(
            f"Expected a Parquet file at {file}, but it can't be read: {error}. Choose another iteration."
        ) from error
    raise ForeignDataError(
        f"Expected {file} to have the columns {', '.join(missing)}. Train with callbacks.recorder.tokens=true."
    )


def _model_folder(run: Path) -> Path | None:
    """Return the folder of the policy that the run has written, or None if it has written none."""
    folder = run / "model"
    return folder if (folder / "config.json").is_file() else None


def _tokenizer(run: Path, model: Path | None) -> Any:
    from transformers import AutoTokenizer

    from ..runs.directory import read_config, value_at

    path = model or value_at(read_config(run / "config.yaml"), "model", "path")
    try:
        return AutoTokenizer.from_pretrained(str(path), trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise FileNotFoundError(
            f"Expected the tokenizer of the run at {path}, but it can't be read: {error}. Write the run's "
            f"model with `tagrpo-export {run} {run / 'model'}`."
        ) from error


def small_batch(seed: int = 0) -> Batch:
    """Return a small batch: 3 questions in 2 wordings, 4 responses each, graded and equal rewards.

    Its log-probs are zeros: the command replaces them with those of the policy that stands for the sampler.
    """
    generator = torch.Generator().manual_seed(derive_seed(seed, "the small batch"))

    def draw(count: int) -> list[int]:
        return torch.randint(2, 40, (count,), generator=generator).tolist()

    rewards = [
        [1.0, 0.0, 0.0, 0.25], [0.0, 1.0, 1.0, 1.0],
        [1.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0],
        [0.5, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0],
    ]  # fmt: skip
    rows = []
    for question in range(3):
        for wording in range(2):
            prompt = draw(3 + question + 2 * wording)
            for sample in range(4):
                length = 1 + (5 * question + 3 * wording + 4 * sample) % 11
                truncated = length > 9
                response = draw(length) if truncated else [*draw(length - 1), 1]
                row = Row(
                    prompt_ids=prompt,
                    response_ids=response,
                    sampled_logprobs=[0.0] * length,
                    reward=rewards[2 * question + wording][sample],
                    question=question,
                    wording=wording,
                    truncated=truncated,
                )
                rows.append(row)
    return Batch(tuple(rows), "the small batch")
