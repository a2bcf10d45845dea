"""Responses are scored while others are still being sampled, with the scores of scoring them at the end."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import tokenizers
import torch
from transformers import PreTrainedTokenizerFast

from tagrpo import types
from tagrpo.modules.advantages import GroupAdvantage
from tagrpo.rollouts import RolloutPipeline, SamplingConfig
from tagrpo.rollouts.scoring import Decoder, Scoring, means_of, parts_of, rewards_of, totals_of, with_terms
from tagrpo.types import Completion, Prompt, QuestionBatch, QuestionGroup, Score

IDS = torch.tensor([7, 8])
GROUPS = [QuestionGroup("a", "q", (), ("0 1",)), QuestionGroup("b", "q", ("r",), ("2 0", "2 2", "9 9"))]
PROMPTS = [Prompt(q, v, "plain", "q", IDS, IDS, g) for q, v, g in ((0, 0, 3), (1, 0, 2), (1, 1, 3))]
PAST = Completion(token_ids=torch.tensor([9, 9]), logprobs=torch.zeros(2), truncated=False)


def two_questions():
    return QuestionBatch(groups=GROUPS, prompts=PROMPTS)


def responses(num_samples):
    return [
        [
            Completion(token_ids=torch.tensor([p, i]), logprobs=torch.zeros(2), truncated=False)
            for i in range(count)
        ]
        for p, count in enumerate(num_samples)
    ]


def decode(token_ids):
    return [" ".join(map(str, row.tolist())) for row in token_ids]


class Late(types.Verifier):
    """Scores when asked at the end, and must not be asked before."""

    def __call__(self, text, references):
        return Score(text in references, text)

    def score_async(self, texts, references):
        raise AssertionError("what is scored in the foreground keeps the engine waiting")


class Early(Late):
    """Scores in a thread of its own."""

    in_background = True

    def __init__(self):
        self.scored = threading.Event()
        self.batches, self.at_the_end = [], []

    def score_batch(self, texts, references):
        self.at_the_end += texts
        return super().score_batch(texts, references)

    def score_async(self, texts, references):
        found = []

        def run():
            self.batches.append(list(texts))
            found.extend(Late.score_batch(self, texts, references))
            self.scored.set()

        thread = threading.Thread(target=run)
        thread.start()

        def wait():
            thread.join()
            return found

        return wait


class Engine(types.Engine):
    """Delivers prompts from the last to the first, and goes on only when the scores of each are there."""

    def __init__(self, scored):
        self.scored = scored

    def sync(self, parameters):
        list(parameters)

    def generate(self, request, deliver=types.ignore):
        results = responses(request.num_samples)
        for p in reversed(range(len(results))):
            deliver(p, results[p])
            if self.scored is not None:
                assert self.scored.wait(10), "the scores must not wait for the end of sampling"
                self.scored.clear()
        return results


def rolled_out(verifier, scored=None):
    pipeline = RolloutPipeline(lambda: Engine(scored), verifier, decode, SamplingConfig(max_new_tokens=4))
    return pipeline.evaluate(two_questions(), torch.nn.Linear(1, 1), 0, ("validate", 0, 0)).rollouts


def test_each_prompt_is_scored_while_the_next_is_sampled_with_the_same_scores():
    verifier = Early()
    early, late = rolled_out(verifier, verifier.scored), rolled_out(Late())
    assert verifier.batches == [["2 0", "2 1", "2 2"], ["1 0", "1 1"], ["0 0", "0 1", "0 2"]]
    assert verifier.at_the_end == []
    assert early.correct.tolist() == [False, True, False, False, False, True, False, True]
    assert early.correct.tolist() == late.correct.tolist()
    assert early.answers == late.answers


@pytest.mark.parametrize("delivered", [(), (1,), (2, 0, 1)])
def test_what_was_not_delivered_and_past_successes_are_scored_at_the_end(delivered):
    verifier = Early()
    batch, sampled = two_questions(), responses([3, 2, 3])
    batch.prompts = [*PROMPTS[:1], PROMPTS[1]._replace(past=PAST), *PROMPTS[2:]]
    scoring = Scoring(batch, verifier, decode)
    for prompt in delivered:
        scoring.deliver(prompt, sampled[prompt])
    texts, scores = scoring.scored([sampled[0], [*sampled[1], PAST], sampled[2]])
    assert texts == ["0 0", "0 1", "0 2", "1 0", "1 1", "9 9", "2 0", "2 1", "2 2"]
    assert [score.correct for score in scores] == [False, True, False, False, False, True, True, False, True]
    late = [text for text in texts if text == "9 9" or int(text[0]) not in delivered]
    assert verifier.at_the_end == late


def by_bytes(token_ids):
    """A tokenizer whose tokens are bytes."""
    return [bytes(row.tolist()).decode(errors="replace") for row in token_ids]


class Reader(types.Verifier):
    """Remembers what it was given."""

    def __init__(self):
        self.read = []

    def __call__(self, text, references):
        self.read.append(text)
        return Score(text.endswith("5"), text)


class BackgroundReader(Reader):
    in_background = True


class WholeReader(Reader):
    reads_response = True


THOUGHT = "<think>5?</think>It is 5"
CUT = "5 and 5"
"""A response that has no marks: the prompt opened its thoughts."""


def scored_texts(verifier, prompts, *, truncated=False, verifier_reads="answer"):
    """Texts, scores and rollouts of one response to each of (prompt text, response), tokens being bytes."""
    batch = QuestionBatch(
        groups=GROUPS[:1], prompts=[Prompt(0, 0, "plain", prompt, IDS, IDS, 1) for prompt, _ in prompts]
    )
    samples = [
        [
            Completion(
                token_ids=torch.tensor(list(text.encode())),
                logprobs=torch.zeros(len(text)),
                truncated=truncated,
            )
        ]
        for _, text in prompts
    ]
    scoring = Scoring(batch, verifier, by_bytes, verifier_reads)
    scoring.deliver(0, samples[0])
    return scoring.scored(samples)


@pytest.mark.parametrize("reader", [Reader, BackgroundReader])
def test_verifiers_read_the_answer_and_records_the_response(reader):
    verifier = reader()
    texts, scores = scored_texts(verifier, [("q", THOUGHT), ("q", "It is 4")])
    assert sorted(verifier.read) == ["It is 4", "It is 5"]
    assert texts == [THOUGHT, "It is 4"]
    assert [score.correct for score in scores] == [True, False]


@pytest.mark.parametrize(("verifier", "reads"), [(Reader(), "response"), (WholeReader(), "answer")])
def test_an_option_or_the_verifier_itself_asks_for_the_whole_response(verifier, reads):
    texts, _ = scored_texts(verifier, [("q", THOUGHT)], verifier_reads=reads)
    assert verifier.read == texts == [THOUGHT]


@pytest.mark.parametrize(
    ("prompt", "truncated", "read"),
    [
        ("q<think>\n", True, ""),  # cut within the thought that the prompt opened
        ("q<think>\n", False, CUT),  # ended by itself, without thoughts
        ("q", True, CUT),
        ("q<think>\n\n</think>\n\n", True, CUT),
    ],
)
def test_the_prompt_and_the_length_limit_tell_what_a_response_without_marks_is(prompt, truncated, read):
    verifier = Reader()
    texts, scores = scored_texts(verifier, [(prompt, CUT)], truncated=truncated)
    assert verifier.read == [read]
    assert texts == [CUT]
    assert scores[0].correct is (read == CUT)


def test_the_pipeline_gives_verifiers_what_the_option_says():
    def read(**options):
        verifier = Reader()
        pipeline = RolloutPipeline(
            lambda: Engine(None),
            verifier,
            lambda ids: [THOUGHT] * len(ids),
            SamplingConfig(max_new_tokens=4),
            **options,
        )
        rollouts = pipeline.evaluate(two_questions(), torch.nn.Linear(1, 1), 0, ("validate", 0, 0)).rollouts
        assert set(rollouts.text) == {THOUGHT}
        return set(verifier.read)

    assert read() == {"It is 5"}
    assert read(verifier_reads="response") == {THOUGHT}
    with pytest.raises(ValueError, match=r"rollout\.verifier_reads"):
        read(verifier_reads="thoughts")


def test_a_batch_without_prompts_is_neither_decoded_nor_scored():
    def refuse(_):
        raise AssertionError("tokenizers make one text of nothing")

    scoring = Scoring(QuestionBatch(groups=[], prompts=[]), Late(), refuse)
    assert scoring.scored([]) == ([], [])


def test_a_reward_that_is_not_finite_is_refused_by_the_name_of_its_term(make_batch):
    batch = make_batch([[[1.0, 0.0]]])
    terms = {
        "fine": lambda rollouts, groups: torch.ones(2),
        "broken": lambda rollouts, groups: torch.tensor([1.0, -torch.inf]),
    }
    with pytest.raises(FloatingPointError, match=r"rollout.reward_terms.broken"):
        with_terms(batch.rollouts, batch, terms)
    assert with_terms(batch.rollouts, batch, {"fine": terms["fine"]}).rewards.tolist() == [2.0, 1.0]


def test_responses_that_are_all_empty_have_means_but_no_entropy(make_batch):
    batch = make_batch([[[1.0, 0.0]]])
    empty = [torch.zeros(0, dtype=torch.long)] * 2
    batch.rollouts = replace(batch.rollouts, token_ids=empty, logprobs=[torch.zeros(0)] * 2)
    means = means_of({**totals_of(batch), "spent_failed": 0, "spent_rollouts": 1})
    assert (means["rollout/length"], means["rollout/correct"]) == (0.0, 0.5)
    assert "rollout/entropy" not in means


class Returns(types.Verifier):
    """Returns something else than scores."""

    def __init__(self, one=None, batch=None, late=None):
        self.one, self.batch, self.late = one, batch, late
        self.in_background = late is not None

    def __call__(self, text, references):
        return self.one(text)

    def score_batch(self, texts, references):
        return self.batch(texts) if self.batch else super().score_batch(texts, references)

    def score_async(self, texts, references):
        return lambda: self.late(texts)


def leave(_):
    raise SystemExit(0)


RIGHT = Score(True, "0")
NO_SCORES = {
    "a float": {"one": lambda _: 1.0},
    "None": {"one": lambda _: None},
    "a bool": {"one": lambda _: True},
    "a tuple": {"one": lambda _: (True, "0")},
    "an answer that is an int": {"one": lambda _: Score(True, 27)},
    "a verdict that is a float": {"one": lambda _: Score(-1.0, "0")},
    "a verdict that is an int": {"one": lambda _: Score(1, "0")},
    "swapped fields": {"one": lambda _: Score("0", True)},
    "an answer with a lone surrogate": {"one": lambda _: Score(True, "0\ud800")},
    "a failure with a lone surrogate": {"late": lambda texts: [Score(False, None, "\udfff") for _ in texts]},
    "no list": {"batch": lambda _: RIGHT},
    "None for all": {"batch": lambda _: None},
    "a generator": {"batch": lambda texts: (RIGHT for _ in texts)},
    "one too few": {"batch": lambda texts: [RIGHT] * (len(texts) - 1)},
    "one too many": {"batch": lambda texts: [RIGHT] * (len(texts) + 1)},
    "a float for the last": {"batch": lambda texts: [RIGHT] * (len(texts) - 1) + [0.0]},
    "in the background one too few": {"late": lambda texts: [RIGHT] * (len(texts) - 1)},
    "in the background a float": {"late": lambda texts: [0.5] * len(texts)},
    "in the background an int as answer": {"late": lambda texts: [Score(True, 3) for _ in texts]},
    "an end of the program": {"one": leave},
    "an end of the program in the background": {"late": leave},
}


@pytest.mark.parametrize("case", NO_SCORES)
def test_a_verifier_that_gives_no_scores_is_named_with_its_setting(case):
    with pytest.raises((TypeError, ValueError, RuntimeError), match=r"Returns \(rollout\.verifier\)"):
        rolled_out(Returns(**NO_SCORES[case]))


def test_a_verifier_may_return_a_tuple_of_scores():
    assert rolled_out(Returns(batch=lambda texts: (RIGHT,) * len(texts))).correct.all()


@pytest.mark.parametrize(
    "term",
    [
        lambda *_: [1.0, 0.0], lambda *_: None, lambda *_: 1.0, lambda *_: torch.ones(3), lambda *_: torch.ones(2, 1),
        lambda *_: torch.tensor(1.0), lambda *_: torch.tensor([1.0, torch.nan]), lambda *_: torch.full((2,), 3e38),
        lambda *_: torch.tensor([1e39, 0.0], dtype=torch.float64), lambda *_: torch.ones(2) + 0j, leave,
    ],
)  # fmt: skip
def test_a_term_that_is_no_finite_number_for_each_response_is_named(make_batch, term):
    batch = make_batch([[[1.0, 0.0]]])
    with pytest.raises(
        (TypeError, ValueError, FloatingPointError, RuntimeError), match=r"rollout\.reward_terms\.mine"
    ):
        with_terms(batch.rollouts, batch, {"mine": (lambda *_: leave(0)) if term is leave else term})


def test_terms_whose_sum_overflows_are_refused_and_flags_are_numbers(make_batch):
    batch = make_batch([[[1.0, 0.0]]])
    half = torch.full((2,), 0.6e18)
    with pytest.raises(FloatingPointError, match=r"rollout\.reward_terms\.\*"):
        with_terms(batch.rollouts, batch, {"a": lambda *_: half, "b": lambda *_: half})
    rewarded = with_terms(batch.rollouts, batch, {"flag": lambda *_: torch.tensor([True, False])})
    assert rewarded.rewards.tolist() == [2.0, 0.0]


@pytest.mark.parametrize("delivered", [None, 3, [None], [torch.ones(2)]])
def test_an_engine_that_delivers_something_else_than_responses_is_named(delivered):
    class Mine(Engine):
        def generate(self, request, deliver=types.ignore):
            deliver(0, delivered)

    pipeline = RolloutPipeline(lambda: Mine(None), Early(), decode, SamplingConfig(max_new_tokens=4))
    with pytest.raises(TypeError, match=r"Mine \(rollout\.engine\)"):
        pipeline.evaluate(two_questions(), torch.nn.Linear(1, 1), 0, ("validate", 0, 0))


@pytest.mark.parametrize(
    ("special", "text"),
    [
        (["[THINK]", "[/THINK]", "<eos>"], "[THINK] four [/THINK] five"),
        (["[/THINK]", "<eos>"], "[THINK] four [/THINK] five"),
        (["<eos>"], "[THINK] four [/THINK] five"),
    ],
)
def test_special_tokens_that_mark_thoughts_stay_in_the_text(special, text):
    words = ["[THINK]", "[/THINK]", "<eos>", "four", "five"]
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: n for n, word in enumerate(words)}))
    model.add_special_tokens(special)
    decoder = Decoder()
    decoder.tokenizer = PreTrainedTokenizerFast(tokenizer_object=model, additional_special_tokens=special)
    rows = [torch.tensor([0, 3, 1, 4, 2]), torch.tensor([3, 2])]
    assert decoder(rows) == [text, "four"]


class Graded(types.PromptVerifier):
    """Rewards a response by the last digit, and remembers what it was asked, and when."""

    def __init__(self, in_background=False):
        self.in_background = in_background
        self.started, self.waited = [], []

    def __call__(self, text, references):
        raise AssertionError("it reads prompts")

    def score_prompt(self, prompt, group, texts, token_ids, step):
        self.started.append(
            (prompt.rephrasing, group.id, list(texts), [ids.tolist() for ids in token_ids], step)
        )

        def wait():
            self.waited.append(len(self.started))
            return [Score(text[-1] == "1", text, reward=int(text[-1]) / 4) for text in texts]

        return wait


@pytest.mark.parametrize("in_background", [False, True])
def test_a_verifier_of_prompts_gets_all_responses_to_each_with_question_and_tokens(in_background):
    verifier = Graded(in_background)
    batch, sampled = two_questions(), responses([3, 2, 3])
    batch.prompts = [*PROMPTS[:1], PROMPTS[1]._replace(past=PAST), *PROMPTS[2:]]
    scoring = Scoring(batch, verifier, decode, step=5)
    scoring.deliver(2, sampled[2])
    texts, scores = scoring.scored([sampled[0], [*sampled[1], PAST], sampled[2]])
    asked = [
        (0, "a", ["0 0", "0 1", "0 2"], [[0, 0], [0, 1], [0, 2]], 5),
        (0, "b", ["1 0", "1 1"], [[1, 0], [1, 1]], 5),
        (0, "b", ["9 9"], [[9, 9]], 5),
        (1, "b", ["2 0", "2 1", "2 2"], [[2, 0], [2, 1], [2, 2]], 5),
    ]
    assert verifier.started == ([asked[3], *asked[:3]] if in_background else asked)
    assert verifier.waited == [4] * 4, "the first is waited for when all have started"
    assert texts == ["0 0", "0 1", "0 2", "1 0", "1 1", "9 9", "2 0", "2 1", "2 2"]
    assert [score.reward for score in scores] == [0, 0.25, 0.5, 0, 0.25, 9 / 4, 0, 0.25, 0.5]


def test_methods_learn_from_the_reward_and_pass_at_k_counts_the_verdict():
    verifier = Graded()
    pipeline = RolloutPipeline(lambda: Engine(None), verifier, decode, SamplingConfig(max_new_tokens=4))
    rollouts = pipeline.evaluate(two_questions(), torch.nn.Linear(1, 1), 7, ("validate", 0, 0)).rollouts
    assert {step for *_, step in verifier.started} == {7}
    assert rollouts.rewards.tolist() == [0, 0.25, 0.5, 0, 0.25, 0, 0.25, 0.5]
    assert rollouts.correct.tolist() == [False, True, False, False, True, False, True, False]
    with_noise = with_terms(rollouts, two_questions(), {"one": lambda rollouts, _: torch.ones(len(rollouts))})
    assert torch.equal(with_noise.rewards, rollouts.rewards + 1)


def test_responses_without_a_reward_leave_the_mean_of_their_question_as_it_is():
    none = Score(False, None, types.NO_REWARD)
    scores = [
        Score(True, None, reward=0.9),
        none,
        Score(False, None, reward=0.2),
        none,
        none,
        Score(True, "7"),
    ]
    question = torch.tensor([0, 0, 0, 1, 1, 0])
    rewards = rewards_of(scores, question)
    mean = (0.9 + 0.2 + 1.0) / 3
    torch.testing.assert_close(rewards, torch.tensor([0.9, mean, 0.2, 0.0, 0.0, 1.0]))
    groups = types.RewardGroups(rewards=rewards, correct=rewards > 2, question=question, prompt=question)
    advantages = GroupAdvantage("question", scale="none")(groups)
    assert advantages[[1, 3, 4]].abs().max() < 1e-6
    torch.testing.assert_close(advantages[[0, 2, 5]].float(), torch.tensor([0.9, 0.2, 1.0]) - mean)


def test_equal_rewards_stay_equal_where_one_is_missing():
    scores = [Score(False, None, reward=0.3)] * 7 + [Score(False, None, types.NO_REWARD)]
    assert len(set(rewards_of(scores, torch.zeros(8)).tolist())) == 1


def test_means_of_reward_parts_are_over_the_responses_that_have_them():
    """Each rank may lack a name."""
    scores = [
        Score(False, None, reward=1.0, parts=[("a", 0.5), ("b", 2.0)]),
        Score(False, None, reward=1.0, parts=[("a", 1.0)]),
        Score(False, None, types.NO_REWARD),
    ]
    parts = parts_of(scores)
    assert list(parts) == ["a", "b"]
    assert parts["a"].tolist()[:2] == [0.5, 1.0]
    assert parts["b"].isnan().tolist() == [False, True, True]

    class Parts(Graded):
        def score_prompt(self, prompt, group, texts, token_ids, step):
            return lambda: [scores[min(row, 2)] for row in range(len(texts))]

    batch = RolloutPipeline(lambda: Engine(None), Parts(), decode, SamplingConfig()).evaluate(
        two_questions(), torch.nn.Linear(1, 1), 0, ("validate", 0, 0)
    )
    totals = {**totals_of(batch), "spent_failed": 2.0, "spent_rollouts": 8.0}
    means = means_of(totals)
    assert means["rollout/reward_part/a"] == pytest.approx((3 * 0.5 + 3 * 1.0) / 6)
    assert means["rollout/reward_part/b"] == 2.0
    assert means["rollout/without_verdict"] == 0.25
    assert not any("with_reward_part" in name for name in means)
