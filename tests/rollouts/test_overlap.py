"""Responses are judged while others are still being sampled, with the verdicts of judging them at the end."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
import torch

from tagrpo.callbacks import RolloutCallback
from tagrpo.rollouts import SamplingConfig
from tagrpo.types import Completion, Prompt, QuestionBatch, QuestionGroup, Score

IDS = torch.tensor([7, 8])


class Engine:
    """Delivers prompts from the last to the first, and goes on only when the verdict on each is there."""

    def __init__(self, verifier):
        self.verifier = verifier

    def sync(self, parameters):
        list(parameters)

    def generate(self, prompts, num_samples, sampling, seed, deliver=None):
        results = [
            [Completion(token_ids=torch.tensor([p, i]), logprobs=torch.zeros(2), truncated=False) for i in range(count)]
            for p, count in enumerate(num_samples)
        ]
        for p in reversed(range(len(prompts))):
            if deliver is not None:
                deliver(p, results[p])
                assert self.verifier.judged.wait(10), "the verdict must not wait for the end of sampling"
                self.verifier.judged.clear()
        return results


def judge(text, references):
    return Score(text in references, text)


class Late:
    """Judges batches when asked at the end."""

    def judge_batch(self, texts, references):
        return [judge(*pair) for pair in zip(texts, references, strict=True)]

    def __call__(self, text, references):
        return judge(text, references)


class Early(Late):
    """Judges in a thread of its own."""

    def __init__(self):
        self.judged = threading.Event()
        self.batches = []

    def judge_async(self, texts, references):
        future = Future()

        def run():
            self.batches.append(list(texts))
            future.set_result(self.judge_batch(texts, references))
            self.judged.set()

        threading.Thread(target=run).start()
        return future


@pytest.fixture
def roll_out():
    def run(verifier, replayed=None):
        groups = [QuestionGroup("a", "q", (), ("0 1",)), QuestionGroup("b", "q", ("r",), ("2 0", "2 2", "9 9"))]
        prompts = [Prompt(q, v, "plain", "q", IDS, IDS, g) for q, v, g in ((0, 0, 3), (1, 0, 2), (1, 1, 3))]
        decode = lambda ids, skip_special_tokens: [" ".join(map(str, row.tolist())) for row in ids]  # noqa: E731
        trainer = SimpleNamespace(
            global_step=0, datamodule=SimpleNamespace(tokenizer=SimpleNamespace(batch_decode=decode))
        )
        callback = RolloutCallback(lambda: Engine(verifier), verifier, SamplingConfig(max_new_tokens=4))
        batch = QuestionBatch(groups=groups, prompts=prompts)
        position = ("validate", 0, 0)
        return callback.roll_out(trainer, torch.nn.Linear(1, 1), batch, SamplingConfig(), position, replayed)

    return run


def test_each_prompt_is_judged_while_the_next_is_sampled_with_the_same_verdicts(roll_out):
    verifier = Early()
    early, late = roll_out(verifier), roll_out(Late())
    assert verifier.batches == [["2 0", "2 1", "2 2"], ["1 0", "1 1"], ["0 0", "0 1", "0 2"]]
    assert early.correct.tolist() == [False, True, False, False, False, True, False, True]
    assert early.correct.tolist() == late.correct.tolist()
    assert early.answers == late.answers


def test_a_replayed_response_is_judged_with_the_rest(roll_out):
    past = {1: Completion(token_ids=torch.tensor([9, 9]), logprobs=torch.zeros(2), truncated=False)}
    early, late = roll_out(Early(), past), roll_out(Late(), past)
    assert early.correct.tolist() == [False, True, False, False, False, True, True, False, True]
    assert early.correct.tolist() == late.correct.tolist()
