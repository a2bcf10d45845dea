"""Prompt augmentation: the 13 templates, who draws which, and what the draw depends on."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest
from transformers import AutoTokenizer

from tagrpo.datamodules.templates import PlainTemplate, PromptAugmentation
from tagrpo.lab.tasks.arithmetic import ArithmeticSource
from tagrpo.rewards.terms import MARKERS
from tagrpo.starter import starter_path

THINK_LINES = ("<think>\n", "\n</think>\n", "\n<answer>\n", "\n</answer>")
THINK = ("<think>", "</think>", "<answer>", "</answer>")
SOLUTION = ("<solution>\n", "\n</solution>\n", "\n<check>\nLet's verify step by step", "\n</check>")
STATED = ("The final answer is:",)

# Name → (category, texts of the system prompt, texts after the question, how the assistant's turn begins, markers).
# From the authors' templates.py and format_reward.py.
PAPER = {
    "open-r1": ("deepseek", (*THINK_LINES, "\\boxed{}"), (), "", THINK_LINES),
    "open-r1-teacher": ("deepseek", (*THINK_LINES, "\\boxed{}"), (), "<think>\n", THINK_LINES[1:]),
    "deepseek-r1": ("deepseek", (*THINK, "\\boxed{}"), (), "", THINK),
    "deepseek-r1-teacher": ("deepseek", (*THINK, "\\boxed{}"), (), "<think>", THINK[1:]),
    "reflective_prompt": ("reflection", (*SOLUTION, "\\boxed{}"), (), "", SOLUTION),
    "reflective_prompt-teacher": ("reflection", (*SOLUTION, "\\boxed{}"), (), "<solution>\n", SOLUTION[1:]),
    "abel": ("cot", ("\\boxed{}",), (), "Let's think step by step.\n", ()),
    "lm_eval_prompt1": ("cot", (*STATED, "\\boxed{answer}"), (), "Let's think step by step", STATED),
    "lm_eval_prompt4": ("cot", (), (*STATED, "\\boxed{answer}"), "", STATED),
    "lm_eval_prompt8": ("cot", ("\\boxed{}",), (), "Let's think step by step", ()),
    "simplerl": ("free", (), ("\\boxed{}",), "", ()),
    "qwen-math": ("free", ("\\boxed{}",), (), "", ()),
    "formal": ("free", ("\\boxed{}",), (), "", ()),
}


@cache
def composed(*overrides):
    from hydra import compose, initialize_config_module

    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        return compose("train", list(overrides))


@pytest.fixture(scope="module")
def paper():
    from hydra.utils import instantiate

    return instantiate(composed("template=prompt_augmentation_paper").template)


@pytest.fixture
def tokenizer():
    return AutoTokenizer.from_pretrained(starter_path())


def of_names(*names, **options):
    return PromptAugmentation({name: PlainTemplate(f"{name} {{question}}") for name in names}, **options)


def make_datamodule(template, **options):
    from tagrpo.datamodules.lightning.questions import QuestionDataModule

    options = {
        "train": ArithmeticSource(size=24, num_rephrasings=2), "evaluation": {},
        "tokenizer": str(starter_path()), "template": template, "batch_size": 6, "num_rephrasings": 2,
        "samples_per_prompt": 8, "max_prompt_tokens": 128, **options,
    }  # fmt: skip
    datamodule = QuestionDataModule(**options)
    datamodule.setup("fit")
    return datamodule


# ------------------------------------------------------------------ the templates


@pytest.mark.shell
def test_the_thirteen_templates_and_their_format_rewards_are_the_papers(paper):
    assert set(paper.templates) == set(MARKERS) == set(PAPER)
    assert Counter(row[0] for row in PAPER.values()) == {"deepseek": 4, "reflection": 2, "cot": 4, "free": 3}
    assert {n: row[4] for n, row in PAPER.items()} == MARKERS
    assert paper.draw == "question"


@pytest.mark.shell
@pytest.mark.parametrize("name", PAPER)
def test_each_instruction_stands_in_the_turn_where_the_paper_has_it(paper, tokenizer, name):
    turns = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    tokenizer.chat_template = turns + "{% if add_generation_prompt %}[assistant]{% endif %}"
    _, in_system, in_user, begins, _ = PAPER[name]
    text = paper.templates[name].render("QUESTION", tokenizer)
    system, rest = text.removeprefix("[system]").split("[user]")
    user, assistant = rest.split("[assistant]")
    assert assistant == begins
    assert user == "QUESTION" if not in_user else user.startswith("QUESTION\n")
    assert [part for part in in_system if part not in system] == []
    assert [part for part in in_user if part not in user] == []
    assert ("\\boxed" in system) != ("\\boxed" in user)


@pytest.mark.shell
def test_a_teacher_fills_in_the_tag_that_its_format_reward_leaves_out(paper):
    teachers = [name for name in PAPER if name.endswith("-teacher")]
    assert len(teachers) == 3
    for name in teachers:
        student = name.removesuffix("-teacher")
        filled, own = paper.templates[name], paper.templates[student]
        assert (filled.prefill, *MARKERS[name]) == MARKERS[student]
        assert (filled.system, own.prefill) == (own.system, "")


@pytest.mark.shell
def test_the_experiment_takes_the_templates_that_its_scale_can_use(tokenizer):
    from hydra.utils import instantiate

    demo = composed("experiment=prompt_augmentation")
    templates = instantiate(demo.template)
    assert list(templates.templates) == ["plain", "compute", "count", "steps"]
    term = instantiate(demo.rollout.reward_terms.format)
    assert set(templates.templates) <= set(term.markers)
    unknown = tokenizer.unk_token_id
    for template in templates.templates.values():
        ids = tokenizer(template.render("Compute 1 + 2.", tokenizer), add_special_tokens=False)["input_ids"]
        assert unknown not in ids
    large = composed(
        "experiment=prompt_augmentation", "scale=paper", "data.train.path=x", "data.evaluation.test.path=y"
    )
    assert set(large.template.templates) == set(PAPER)
    # The authors evaluate in this one; evaluation asks in the first.
    assert next(iter(large.template.templates)) == "qwen-math"
    chosen = composed(
        "experiment=prompt_augmentation", "template=prompt_augmentation_paper", "template.draw=response"
    )
    assert (set(chosen.template.templates), chosen.template.draw) == (set(PAPER), "response")


@pytest.mark.shell
def test_the_experiment_trains_as_the_paper_does():
    for scale in ([], ["scale=paper", "data.train.path=x", "data.evaluation.test.path=y"]):
        cfg = composed("experiment=prompt_augmentation", *scale)
        loss = cfg.loss
        assert (loss.aggregation, loss.clip_low, loss.clip_high) == ("token_mean", 0.2, 0.28)
        assert (loss.kl_coef, loss.entropy_coef) == (0.0, 0.0)
        assert (cfg.data.samples_per_prompt, cfg.data.num_rephrasings, cfg.policy.anchor) == (8, 0, "own")
        assert list(cfg.rollout.reward_terms) == ["format"]
        assert cfg.rollout.reward_terms.format.weight == 1.0


# ------------------------------------------------------------------ the draw


def test_the_draw_follows_from_seed_epoch_and_question_alone():
    names = ("a", "b", "c", "d", "e")
    questions = [f"q{i}" for i in range(40)]

    def drawn(seed=0, epoch=0, order=questions):
        augmentation = of_names(*names, seed=seed)
        return {q: augmentation.assign(q, epoch, num_phrasings=1, num_samples=8)[0] for q in order}

    first = drawn()
    # Written down once: the same in every process, whatever its hash seed, and on every rank.
    assert "".join(next(iter(first[q])) for q in questions[:12]) == "cddeebeaccdd"
    assert drawn(order=questions[::-1]) == first, "the order of questions does not matter"
    for other in (drawn(seed=1), drawn(epoch=1)):
        same = sum(other[q] == first[q] for q in questions)
        assert 0 < same < 20, "about one in five agrees by chance"


@pytest.mark.shell
def test_templates_are_drawn_uniformly(paper):
    for draw in ("question", "prompt", "response"):
        augmentation = PromptAugmentation(paper.templates, draw=draw)
        counts = Counter()
        for i in range(3900):
            for share in augmentation.assign(f"q{i}", 0, num_phrasings=1, num_samples=1):
                counts.update(share)
        chi_square = sum((counts[name] - 300) ** 2 / 300 for name in PAPER)
        assert chi_square < 32.9, "p > 0.001 with 12 degrees of freedom"


def test_a_question_has_one_template_for_all_its_rephrasings_and_responses():
    shares = of_names("a", "b", "c", "d").assign("q", 3, num_phrasings=5, num_samples=8)
    ((name, count),) = shares[0].items()
    assert count == 8
    assert shares == [{name: 8}] * 5


def test_prompts_draw_for_themselves_and_those_drawn_before_do_not_change():
    augmentation = of_names(*"abcdefgh", draw="prompt")
    shares = augmentation.assign("q", 0, num_phrasings=8, num_samples=4)
    assert all(list(share.values()) == [4] for share in shares)
    assert len({next(iter(share)) for share in shares}) > 2
    # With fewer rephrasings the others keep their templates.
    assert augmentation.assign("q", 0, num_phrasings=3, num_samples=4) == shares[:3]


def test_responses_draw_for_themselves_and_none_is_lost():
    augmentation = of_names(*"abc", draw="response")
    totals = Counter()
    for i in range(300):
        shares = augmentation.assign(f"q{i}", 0, num_phrasings=2, num_samples=8)
        assert [sum(share.values()) for share in shares] == [8, 8]
        assert [list(share) for share in shares] == [sorted(share) for share in shares], (
            "in the order of the templates"
        )
        totals.update(shares[0])
    # 2,400 independent draws, a third each, standard deviation 23.
    assert all(abs(totals[name] - 800) < 92 for name in "abc")


def test_no_template_and_an_unknown_draw_are_refused():
    with pytest.raises(ValueError, match=r"template\.templates"):
        PromptAugmentation({})
    with pytest.raises(ValueError, match=r"template\.draw.*'batch'"):
        of_names("a", draw="batch")


# ------------------------------------------------------------------ in the data module


@pytest.mark.shell
def test_every_rephrasing_is_anchored_in_its_own_template():
    from hydra.utils import instantiate

    for draw in ("question", "prompt", "response"):
        datamodule = make_datamodule(
            instantiate(composed("template=prompt_augmentation_demo", f"template.draw={draw}").template)
        )
        batch = next(iter(datamodule.train_dataloader()))
        for prompt in batch.prompts:
            group = batch.groups[prompt.question]
            template = datamodule.templates.templates[prompt.template]
            question = (group.question, *group.rephrasings)[prompt.rephrasing]
            assert prompt.text == template.render(question, datamodule.tokenizer)
            anchor = template.render(group.question, datamodule.tokenizer)
            assert datamodule.tokenizer(anchor)["input_ids"] == prompt.anchor_ids.tolist()
            assert datamodule.tokenizer(prompt.text)["input_ids"] == prompt.token_ids.tolist()
        samples = Counter()
        for prompt in batch.prompts:
            samples[prompt.question, prompt.rephrasing] += prompt.num_samples
        assert set(samples.values()) == {8}
        assert len(samples) == 6 * 3
        templates = {row: {p.template for p in batch.prompts if p.question == row} for row in range(6)}
        assert (max(len(names) for names in templates.values()) == 1) == (draw == "question")


def template_of(batches):
    return {batch.groups[p.question].id: p.template for batch in batches for p in batch.prompts}


@pytest.mark.shell
def test_a_question_changes_its_template_between_epochs_but_not_with_rank_or_resume():
    from hydra.utils import instantiate

    template = instantiate(composed("template=prompt_augmentation_demo").template)
    loader = make_datamodule(template).train_dataloader()
    epochs = [template_of(loader), template_of(loader)]
    assert epochs[0].keys() == epochs[1].keys()
    assert epochs[0] != epochs[1]
    resumed = make_datamodule(template).train_dataloader()
    resumed.load_state_dict({**loader.state_dict(), "epoch": 1, "cursor": 12})
    second_half = template_of(resumed)
    assert len(second_half) == 12
    assert second_half.items() <= epochs[1].items()
    halves = {}
    for rank in (0, 1):
        one = make_datamodule(template).train_dataloader()
        one.rank, one.world_size = rank, 2
        halves |= template_of(one)
    assert halves == epochs[0]


@pytest.mark.shell
def test_evaluation_asks_in_the_first_template_or_the_one_that_is_named():
    from hydra.utils import instantiate

    template = instantiate(composed("template=prompt_augmentation_demo").template)
    source = {"test_id": ArithmeticSource(split="test_id", size=5)}
    for evaluation, expected in ((None, "plain"), (PlainTemplate("{question} <sep>", name="asked"), "asked")):
        datamodule = make_datamodule(template, evaluation=source, evaluation_template=evaluation)
        (loader,) = datamodule.val_dataloader()
        assert {p.template for batch in loader for p in batch.prompts} == {expected}
