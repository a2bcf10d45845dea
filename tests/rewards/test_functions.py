"""Functions with TRL's signature: the values that they return, what they are given, and how they are refused."""

from __future__ import annotations

import asyncio
import functools
import math
import pickle
import sys
import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tagrpo.rewards import FunctionReward
from tagrpo.types import NO_REWARD, Prompt, QuestionGroup, Score

DEEP = """
from own_rewards_a import fn

class Judge:
    def __call__(self, completions):
        return fn(completions)

judge = Judge()
"""
IDS = torch.tensor([5, 6])
GROUP = QuestionGroup(
    "q7", "3 + 4", ("4 + 3",), ("7",), {"level": 2, "hints": ["add", "carry"], "prompt": "?"}
)
TEXTS = ["#### 7", "<think>4</think> #### 8"]
TOKENS = [torch.tensor([1, 2]), torch.tensor([3])]


def prompt_of(messages=None):
    return Prompt(0, 0, "plain", "3 + 4 =", IDS, IDS, 2, messages=messages)


def scored(function, group=GROUP, texts=TEXTS, messages=None, step=0, known=(), **options):
    """Scores of responses to a prompt as the pipeline asks for them."""
    with FunctionReward(function, **options) as reward:
        reward.check_questions([group, *known])
        tokens = [torch.tensor([1] * len(text)) for text in texts]
        return reward.score_prompt(prompt_of(messages), group, texts, tokens, step)()


def constant(*values):
    def function(completions, **columns):
        return list(values)

    return function


def half(completions):
    return [0.5 for _ in completions]


class Judge:
    """An object that is called like a function."""

    def __init__(self, value=0.75):
        self.value = value

    def __call__(self, completions, **columns):
        return [self.value for _ in completions]


class TestArguments:
    def recorded(self, messages=None, step=0, **options):
        calls = []

        def function(**arguments):
            calls.append(arguments)
            return [0.0 for _ in arguments["completions"]]

        with FunctionReward(function, **options) as reward:
            reward.score_prompt(prompt_of(messages), GROUP, TEXTS, TOKENS, step)()
        (arguments,) = calls
        return arguments

    def test_a_function_gets_lists_with_an_entry_for_each_response(self):
        found = self.recorded(step=12)
        assert found.pop("trainer_state").global_step == 12
        assert found.pop("log_extra")("column", [1, 2]) is None
        assert found.pop("log_metric")("name", 1.0) is None
        assert found == {
            "prompts": ["3 + 4 ="] * 2,
            "completions": TEXTS,
            "completion_ids": [[1, 2], [3]],
            "answer": ["7", "7"],
            "question": ["3 + 4"] * 2,
            "id": ["q7"] * 2,
            "level": [2, 2],
            "hints": [["add", "carry"]] * 2,
        }

    def test_prompts_and_completions_are_messages_in_a_conversation(self):
        turns = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "3 + 4"})
        found = self.recorded(turns)
        assert found["prompts"] == [list(turns)] * 2
        assert found["completions"] == [[{"role": "assistant", "content": text}] for text in TEXTS]
        assert found["prompts"][0][0] is not turns[0], "a function may change what it gets"

    def test_several_accepted_answers_are_a_list(self):
        assert scored(
            lambda completions, answer: [float(answer == [["7", "seven"]] * 2)] * 2,
            GROUP._replace(answer=("7", "seven")),
        )[0].reward == 1.0  # fmt: skip

    def test_only_arguments_of_the_signature_are_passed(self):
        assert [score.reward for score in scored(half)] == [0.5, 0.5]

        @functools.wraps(half)
        def wrapped(**arguments):
            assert list(arguments) == ["completions"]
            return half(**arguments)

        assert [score.reward for score in scored(wrapped)] == [0.5, 0.5]

    def test_an_argument_gets_the_column_that_is_set(self):
        def function(completions, solution, **columns):
            assert columns["answer"] == solution == ["7", "7"]
            return [1.0, 0.0]

        assert [score.correct for score in scored(function, columns={"solution": "answer"})] == [True, False]

    def test_a_column_of_other_rows_is_none(self):
        other = QuestionGroup("q8", "2 + 2", (), ("4",), {"source": "book"})
        values = []

        def function(completions, source, **columns):
            values.extend([source, columns["level"]])
            return [0.0, 0.0]

        scored(function, known=[other])
        assert values == [[None, None], [2, 2]]

    @pytest.mark.parametrize(("needs", "like"), [("levle", "level"), ("solution", "answer")])
    def test_a_column_of_no_row_is_refused_on_loading(self, needs, like):
        namespace = {}
        exec(f"def function(completions, {needs}): return []", namespace)
        reward = FunctionReward(namespace["function"])
        with pytest.raises(ValueError, match=rf"'{needs}'.*reward\.columns=\{{{needs}: {like}\}}"):
            reward.check_questions([GROUP])

    def test_a_column_that_does_not_exist_is_refused_by_its_setting(self):
        with pytest.raises(ValueError, match=r"reward\.columns\.solution.*'answers'"):
            FunctionReward(constant(1.0), columns={"solution": "answers"}).check_questions([GROUP])

    def test_rows_of_a_split_without_questions_need_no_column(self):
        FunctionReward(lambda completions, level: []).check_questions([])


class TestValues:
    @pytest.mark.parametrize(
        "returned",
        [
            [1, 0.25], (1.0, 0.25), [True, np.float32(0.25)], np.array([1.0, 0.25]), torch.tensor([1.0, 0.25]),
            [torch.tensor(1.0, requires_grad=True), np.float64(0.25)], (x for x in (1.0, 0.25)),
        ],
    )  # fmt: skip
    def test_numbers_of_any_kind_are_read(self, returned):
        scores = scored(lambda completions: returned)
        assert scores == [Score(True, "7", reward=1.0), Score(False, "8", reward=0.25)]
        assert all(type(score.reward) is float for score in scores)

    @pytest.mark.parametrize(
        ("returned", "kind", "said"),
        [
            (0.5, TypeError, "0.5"), (None, TypeError, "None"), ("ab", TypeError, "'ab'"), ({0: 1, 1: 0}, TypeError, "dict"),
            ({0.5, 1.0}, TypeError, "set"), (torch.zeros(2, 1), TypeError, r"\[2, 1\]"), ([], ValueError, "0"),
            ([1.0], ValueError, "1"), ([1.0] * 3, ValueError, "3"), ([1.0, "0.5"], TypeError, "'0.5'.*response 1"),
            ([1j, 0.0], TypeError, "1j.*response 0"), ([[1.0], [0.0]], TypeError, r"\[1.0\].*response 0"),
            ([0.0, math.nan], FloatingPointError, "nan.*response 1"), ([-math.inf, 0.0], FloatingPointError, "inf.*response 0"),
            ([0.0, 1e30], FloatingPointError, "response 1"), ([0, 10**400], FloatingPointError, "response 1"),
        ],
    )  # fmt: skip
    def test_anything_else_is_refused_by_function_and_question(self, returned, kind, said):
        def graded(completions):
            return returned

        with pytest.raises(kind, match=rf"graded.*reward\.target.*{said}.*'q7'|graded.*{said}"):
            scored(graded)

    @pytest.mark.parametrize("error", [KeyError("x"), ZeroDivisionError("y"), StopIteration(), SystemExit(0)])
    @pytest.mark.parametrize("options", [{}, {"workers": 1}])
    def test_an_error_is_told_with_function_question_and_line(self, error, options):
        def raising(completions):
            raise error

        with pytest.raises(RuntimeError, match=r"raising.*reward\.target.*'q7'.*test_functions\.py, line"):
            scored(raising, **options)

    @pytest.mark.parametrize("error", [KeyError("x"), SystemExit(0)])
    def test_an_error_of_an_asynchronous_function_is_told_likewise(self, error):
        async def raising(completions):
            await asyncio.sleep(0)
            raise error

        with pytest.raises(RuntimeError, match=r"raising.*reward\.target.*'q7'"):
            scored(raising)

    def test_a_function_may_change_its_lists(self):
        def changing(completions, answer):
            completions.clear()
            answer.append("8")
            return [0.0, 0.0]

        def counting(completions, answer):
            return [len(completions) / 4, len(answer) / 8]

        assert [score.reward for score in scored([changing, counting])] == [0.5, 0.25]

    numbers = st.none() | st.floats(-4, 4) | st.booleans() | st.integers(-3, 3)

    @given(st.data())
    def test_the_reward_is_the_weighted_sum_of_what_applies_as_in_trl(self, data):
        """Compared with TRL's formula: `nansum` over functions, nan where none applies."""
        functions, rows = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4))
        values = [data.draw(st.lists(self.numbers, min_size=rows, max_size=rows)) for _ in range(functions)]
        weights = data.draw(st.lists(st.floats(-2, 2), min_size=functions, max_size=functions))
        threshold = data.draw(st.floats(-4, 4))
        targets = [constant(*column) for column in values]
        scores = scored(targets, texts=["x"] * rows, weights=weights, correct_above=threshold)
        table = np.array([[np.nan if v is None else float(v) for v in column] for column in values])
        expected = np.nansum(table * np.array(weights)[:, None], axis=0)
        for score, row, total in zip(scores, table.T, expected, strict=True):
            if np.isnan(row).all():
                assert score == Score(False, None, NO_REWARD)
            else:
                assert score.reward == pytest.approx(total, abs=1e-12)
                assert score.correct == (score.reward > threshold)
                assert score.failure is None

    def test_each_of_several_functions_is_kept_before_its_weight(self):
        scores = scored([half, Judge(1.0), constant(None, 0.25)], weights=[1, 0.25, 1])
        assert [score.reward for score in scores] == [0.75, 1.0]
        named = [("half", 0.5), ("Judge", 1.0)]
        assert [score.parts for score in scores] == [tuple(named), (*named, ("function", 0.25))]
        assert [score.parts for score in scored(half)] == [(), ()]


class TestVerdict:
    def test_without_a_threshold_rewards_above_one_half_are_correct(self):
        scores = scored(constant(0.0, 0.5, 0.500001, 1.0), texts=["x"] * 4)
        assert [score.correct for score in scores] == [False, False, True, True]

    @pytest.mark.parametrize("value", [-0.01, 1.01, -1, 2])
    def test_a_reward_outside_needs_a_threshold(self, value):
        with pytest.raises(ValueError, match=r"function.*'q7'.*reward\.correct_above=0\.5"):
            scored(constant(0.5, value))
        below, above = scored(constant(0.5, value), correct_above=0.9)
        assert (below.correct, above.correct) == (False, value > 0.9)

    def test_a_sum_that_is_one_but_for_rounding_needs_none(self):
        weights = [0.05] * 20
        assert sum(weights) > 1.0
        assert scored([Judge(1.0)] * 20, weights=weights)[0].correct

    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_a_threshold_is_a_number(self, value):
        with pytest.raises(ValueError, match=r"reward\.correct_above"):
            FunctionReward(half, correct_above=value)

    @pytest.mark.parametrize("weights", [[], [1.0], [1.0, 2.0, 3.0], [1.0, math.nan], [math.inf, 1.0]])
    def test_weights_are_one_number_for_each_function(self, weights):
        with pytest.raises(ValueError, match=r"reward\.weights"):
            FunctionReward([half, Judge()], weights=weights)

    def test_votes_are_on_the_final_answer(self):
        texts = [r"so $\boxed{\frac12}$", r"<think>\boxed{3}</think> The answer is 1,000.", "no idea"]
        scores = scored(constant(0.0, 0.0, 0.0), texts=texts)
        assert [score.answer for score in scores] == [r"\frac{1}{2}", "1000", None]


class TestTargets:
    @pytest.fixture(autouse=True)
    def here(self, tmp_path, monkeypatch):
        """The current directory is a folder with modules of its own, which is not on the path."""
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", ".")])
        before = set(sys.modules)
        (tmp_path / "own_rewards_a.py").write_text(
            "def fn(completions):\n    return [0.5 for _ in completions]\n"
        )
        folder = tmp_path / "own_rewards_b"
        folder.mkdir()
        (folder / "deep.py").write_text(DEEP)
        (tmp_path / "own_rewards_c.py").write_text("1 / 0\n")
        (tmp_path / "own_rewards_d.py").write_text("import no_such_package_x\n")
        (tmp_path / "json.py").write_text("def fn(completions):\n    return []\n")
        yield
        for name in set(sys.modules) - before:
            del sys.modules[name]

    @pytest.mark.parametrize("name", ["own_rewards_a.fn", "own_rewards_a:fn", "own_rewards_b.deep.judge"])
    def test_a_module_of_the_current_directory_is_found(self, name):
        assert [score.reward for score in scored(name)] == [0.5, 0.5]

    @pytest.mark.parametrize(
        ("name", "said"),
        [
            ("own_rewards_a.nothing", "nothing"), ("own_rewards_e.fn", "own_rewards_e"),
            ("own_rewards_c.fn", "ZeroDivisionError"), ("own_rewards_d.fn", "no_such_package_x"),
            ("", "''"), ("own rewards", "own rewards"),
            ("json.fn", r"Rename \./json"),
        ],
    )  # fmt: skip
    def test_a_name_that_is_not_found_is_refused(self, name, said):
        with pytest.raises(ValueError, match=rf"reward\.target.*{said}"):
            FunctionReward(name)

    @pytest.mark.parametrize(
        ("target", "said"),
        [
            ("own_rewards_b.deep.Judge", r"reward\.target=\{_target_: own_rewards_b\.deep\.Judge\}"), ("own_rewards_a", "module"),
            (5, "5"), (None, "None"), (torch.nn.Linear(1, 1), "model"), (lambda completions, /: [], "positional-only"),
        ],
    )  # fmt: skip
    def test_what_is_no_function_is_refused(self, target, said):
        with pytest.raises(TypeError, match=said):
            FunctionReward(target)

    def test_at_least_one_function_is_needed(self):
        with pytest.raises(ValueError, match=r"reward\.target"):
            FunctionReward([])

    def test_objects_and_partial_functions_are_functions(self):
        def scaled(completions, factor, **columns):
            return [factor for _ in completions]

        scores = scored([Judge(0.5), functools.partial(scaled, factor=0.25)])
        assert [score.reward for score in scores] == [0.75, 0.75]

    def test_pickling_carries_the_settings(self):
        reward = FunctionReward([half, "own_rewards_a.fn"], weights=[1, 1], correct_above=0.9)
        (score,) = pickle.loads(pickle.dumps(reward)).score(["x"])
        assert (score.reward, score.correct) == (1.0, True)


class TestBackground:
    def test_asynchronous_functions_of_several_prompts_run_side_by_side(self):
        """Each waits until all have started: one after the other, they would never end."""
        started = []
        every = []

        async def meeting(completions):
            if not every:
                every.append(asyncio.Event())
            started.append(len(completions))
            if len(started) == 3:
                every[0].set()
            await asyncio.wait_for(every[0].wait(), 600)
            return [1.0 for _ in completions]

        with FunctionReward([meeting, half], weights=[0.5, 1]) as reward:
            assert reward.in_background
            waits = [reward.score_prompt(prompt_of(), GROUP, TEXTS, TOKENS, 0) for _ in range(3)]
            assert [[score.reward for score in wait()] for wait in waits] == [[1.0, 1.0]] * 3

    def test_workers_call_functions_before_anybody_waits(self):
        called = threading.Event()
        threads = []

        def slow(completions):
            threads.append(threading.current_thread())
            called.set()
            return [1.0 for _ in completions]

        with FunctionReward(slow, workers=1) as reward:
            assert reward.in_background
            wait = reward.score_prompt(prompt_of(), GROUP, TEXTS, TOKENS, 0)
            assert called.wait(600)
            assert [score.reward for score in wait()] == [1.0, 1.0]
        assert threads != [threading.current_thread()]

    def test_without_workers_functions_run_in_the_thread_that_waits(self):
        threads = []

        def function(completions):
            threads.append(threading.current_thread())
            return [1.0 for _ in completions]

        reward = FunctionReward(function)
        assert not reward.in_background
        wait = reward.score_prompt(prompt_of(), GROUP, TEXTS, TOKENS, 0)
        assert threads == []
        wait()
        assert threads == [threading.current_thread()]

    def test_what_was_closed_starts_again(self):
        async def function(completions):
            return [1.0 for _ in completions]

        reward = FunctionReward([function, half], weights=[0.5, 0.5], workers=2)
        for _ in range(2):
            assert reward.score(["x"])[0].reward == 0.75
            reward.close()
        reward.close()

    def test_closing_cancels_what_runs(self):
        cancelled = threading.Event()
        started = threading.Event()

        async def endless(completions):
            started.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.set()
                raise

        reward = FunctionReward(endless)
        reward.score_prompt(prompt_of(), GROUP, TEXTS, TOKENS, 0)
        assert started.wait(600)
        reward.close()
        assert cancelled.is_set()

    @pytest.mark.parametrize("workers", [0, -1])
    def test_there_is_at_least_one_worker(self, workers):
        with pytest.raises(ValueError, match=r"reward\.workers"):
            FunctionReward(half, workers=workers)


class TestOutsideOfAPipeline:
    def test_a_function_is_called_in_two_lines(self):
        reward = FunctionReward(
            lambda prompts, completions, answer: [
                p + a == c for p, a, c in zip(prompts, answer, completions, strict=True)
            ]
        )
        scores = reward.score(prompts=["a", "b"], completions=["a7", "b7"], answer=["7", "8"])
        assert [(score.correct, score.reward) for score in scores] == [(True, 1.0), (False, 0.0)]

    def test_it_is_a_verifier_of_answers(self):
        reward = FunctionReward(
            lambda completions, answer: [a in c for a, c in zip(answer, completions, strict=True)]
        )
        assert reward("the answer is 7", ("7",)) == Score(True, "7", reward=1.0)
        assert [score.correct for score in reward.score_batch(["7", "8"], ["7", "7"])] == [True, False]

    def test_columns_of_other_lengths_are_refused(self):
        with pytest.raises(ValueError, match=r"answer.*2 completions.*1"):
            FunctionReward(half).score(["x", "y"], answer=["7"])

    def test_missing_prompts_are_named(self):
        with pytest.raises(ValueError, match=r"'prompts'"):
            FunctionReward(lambda prompts, completions: []).score(["x"])

    def test_errors_name_the_row_where_questions_have_no_id(self):
        with pytest.raises(TypeError, match=r"response 1 to question '1'"):
            FunctionReward(lambda completions: [0.0, "x"]).score(["x", "y"])


class TestRewardsOfTRL:
    """Functions of `trl.rewards`, unchanged, return what they return when TRL calls them."""

    SOLUTION = r"\frac{1}{3}"
    RESPONSES = (
        r"<think>Easy.</think> It is $\boxed{\frac{1}{3}}$", r"$\boxed{\frac{1}{2}}$", "no no no no no no answer",
        r"<think>\boxed{\frac{1}{3}}", r"<think> a </think> so $\boxed{0.5}$ or $\boxed{\frac{2}{6}}$ so $\boxed{\frac{2}{6}}$",
    )  # fmt: skip

    def targets(self):
        trl = pytest.importorskip("trl.rewards")
        return {
            "trl.rewards.accuracy_reward": trl.accuracy_reward,
            "trl.rewards.reasoning_accuracy_reward": trl.reasoning_accuracy_reward,
            "trl.rewards.think_format_reward": trl.think_format_reward,
            "cosine": trl.get_cosine_scaled_reward(max_len=40),
            "repetition": trl.get_repetition_penalty_reward(ngram_size=2),
            "overlong": trl.get_soft_overlong_punishment(max_completion_len=30, soft_punish_cache=10),
        }

    def test_each_returns_in_a_conversation_what_trl_gets(self):
        texts = list(self.RESPONSES)
        tokens = [torch.tensor([ord(letter) for letter in text]) for text in texts]
        completions = [[{"role": "assistant", "content": text}] for text in texts]
        turns = ({"role": "user", "content": "What is 2/6?"},)
        group = QuestionGroup("q", "What is 2/6?", (), (self.SOLUTION,), {"solution": self.SOLUTION})
        targets = self.targets()
        for name, function in targets.items():
            expected = function(
                completions=completions, solution=[self.SOLUTION] * len(texts),
                completion_ids=[ids.tolist() for ids in tokens], trainer_state=None,
            )  # fmt: skip
            target = name if name.startswith("trl") else function
            with FunctionReward(target, correct_above=0.5) as reward:
                reward.check_questions([group])
                scores = reward.score_prompt(prompt_of(turns), group, texts, tokens, 0)()
            assert [score.reward for score in scores] == expected, name
            assert len(set(expected)) > 1, "a constant would not tell one function from another"
        # one by one: the functions together are the sum of them
        assert len(targets) == 6

    def test_a_reference_that_trl_cannot_read_gives_no_reward(self):
        pytest.importorskip("trl.rewards")
        group = QuestionGroup("q", "?", (), ("",), {"solution": ""})
        (score,) = scored("trl.rewards.accuracy_reward", group, ["x"], ({"role": "user", "content": "?"},))
        assert score == Score(False, None, NO_REWARD)
