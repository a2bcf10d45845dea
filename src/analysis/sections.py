"""Text of a report, for its page and for Markdown: the verdict, a line for each method, and the tables."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .comparison import ZERO_GRADIENT, Methods
from .described import described
from .diagnosis import NOTE, table_of
from .headline import (
    break_even_note,
    by_task,
    method_lines,
    note_of,
    pair_of,
    ratio_of,
    stopped_early,
    verdict_line,
)
from .runs import RunFiles
from .statistics import LEVEL

HEADLINE_KS = (1, 8, 32)
BUDGET_NAMES = {
    "iterations": "iterations", "updates": "optimizer steps", "prompts": "prompts",
    "rollouts": "sampled responses", "tokens": "response tokens",
}  # fmt: skip
MARKS = {"higher": "▲ ", "lower": "▼ ", "undecided": ""}  # before a difference that is beyond noise


@dataclass(frozen=True)
class Section:
    """Table with its title and the notes needed to read it."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Answer:
    """First lines of a report: the verdict, then one sentence for each method, and a note.

    The note states the numbers of questions and seeds, and the statistics behind the sentences.
    """

    sentences: Sequence[str]
    note: str
    about: Sequence[str] = ()
    """Descriptions: a sentence for each task and for each method."""


def answer(methods: Methods) -> Answer:
    """Return the first lines of a report: the verdict on the pair of `pair_of`, then a line for each method.

    If there is no pair, return the pass@k of each method.
    """
    part, k = methods.headline
    pair = pair_of(methods)
    first = next(iter(methods.runs.values()))[0]
    questions = sum(first.test[split]["num_questions"] for split in methods.parts[part])
    about = described(methods)
    if pair is None:
        seeds = max(map(len, methods.runs.values()))
        found = ", ".join(f"{m} solves {e} % of {part} at pass@{k}" for m, e in methods.at(k)[part].items())
        note = f"On {questions} questions and {seeds} seed{'s' * (seeds > 1)}, with 95 % intervals."
        return Answer([f"{found}; there is nothing here to compare with."], note, about)
    seeds = max(
        len(c.seeds) for c in methods.comparisons if (c.method, c.baseline) == (pair.method, pair.baseline)
    )
    sentences = [verdict_line(methods, pair), *method_lines(methods)]
    return Answer(sentences, note_of(methods, seeds, questions), about)


def without_evaluation(runs: Sequence[RunFiles]) -> Answer:
    """Describe runs without sampled tests by their exact evaluations, or by their success in training."""
    sentences = [
        f"{run}: exact pass@{k} of {100 * found['pass_at_k'][k]['value']:.1f} % on {split}."
        for run in runs
        for split, found in (run.exact[-1]["splits"] if run.exact else {}).items()
        for k in list(found["pass_at_k"])[:1]
    ]
    if sentences:
        return Answer(sentences, "From the probabilities of all correct responses; nothing was sampled.")
    sentences = [
        f"{run}, not evaluated yet: {100 * values.iloc[0]:.0f} % of responses to originals were correct in "
        f"iteration {values.index[0]}, {100 * values.iloc[-1]:.0f} % in iteration {values.index[-1]}."
        for run in runs
        if (values := run.scalar("rollout/correct_original")) is not None and len(values)
    ]
    return Answer(
        sentences or ["Not evaluated yet."], "Single iterations on different questions: a trend, no result."
    )


def sections(methods: Methods) -> list[Section]:
    """Return all non-empty tables of a comparison."""
    made = (
        _by_task, _stopped_early, _pass_at_k, _differences, _responses, _budgets, _training_questions, _settings,
    )  # fmt: skip
    return [section for make in made if (section := make(methods)).rows]


def warned(runs: Sequence[RunFiles]) -> list[Section]:
    """Return the warnings of runs about their questions and first iterations."""
    lines = [f"{run.method}, seed {run.seed}. {text}" for run in runs for text in run.warnings]
    return (
        [Section("Warnings", [], [], [part for line in lines for part in line.splitlines()])] if lines else []
    )


def about(runs: Sequence[RunFiles]) -> list[Section]:
    """Return the commands that repeat runs, and the runs' code and package versions, if recorded."""
    repeat = Section("To repeat a run", [], [], [f"    {run.command}" for run in runs if run.command])
    shared: dict[tuple[str, str, str], list[str]] = {}
    for run in runs:
        found = dict(run.provenance)
        commit, changed = found.pop("git_commit", "unknown")[:12], found.pop("git_changed", "")
        others = ", ".join(
            f"{name.removeprefix('version/')} {value}" for name, value in sorted(found.items())
        )
        if run.provenance:
            shared.setdefault((commit, changed or "none", others), []).append(str(run))
    rows = [["all" if len(names) == len(runs) else ", ".join(names), *row] for row, names in shared.items()]
    made_with = Section("Code and versions", ["runs", "commit", "changed files", "versions"], rows)
    return [section for section in (repeat, made_with) if section.rows or section.notes]


def markdown(methods: Methods, figures: Mapping[str, str] | None = None) -> str:
    """Return the report as Markdown; `figures` maps file names of pictures to captions."""
    found = answer(methods)
    shown = [line for name, caption in (figures or {}).items() for line in (f"![{caption}]({name})", caption)]
    drawn = [Section("Figures", [], [], shown)] if shown else []
    lines = [
        f"# {title(methods)}",
        "",
        *(f"- {sentence}" for sentence in found.sentences),
        "",
        found.note,
        "",
    ]
    what = [Section("What was compared", [], [], ["\n".join(f"- {sentence}" for sentence in found.about)])]
    what = what if found.about else []
    parts = (*what, *warned(methods.every), *sections(methods), *drawn, *about(methods.every))
    for section in parts:
        rows = [*table(section.header, section.rows), ""] if section.rows else []
        lines += [f"## {section.title}", "", *rows, *(line for note in section.notes for line in (note, ""))]
    return "\n".join(lines) + "\n"


def title(methods: Methods) -> str:
    """Return the title of a report: the methods that the report compares."""
    names = list(methods.runs)
    return f"Comparison of {', '.join(names)}" if len(names) > 1 else f"Results of {names[0]}"


def table(header: Sequence[str], rows: Iterable[Sequence[object]], line: str = "---") -> list[str]:
    """Return the lines of a Markdown table.

    `line` (`---:` for numbers) is written below all headers but the first.
    """
    lines = [header, ["---", *[line] * (len(header) - 1)], *rows]
    return ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |" for cells in lines]


def _by_task(methods: Methods) -> Section:
    """Return the comparison of the report's first pair in every split and average."""
    pair = pair_of(methods)
    if pair is None:
        return Section("", [], [])
    header, rows = by_task(methods, pair)
    note = (
        "Each task by itself, in percent; differences in points with 95 % intervals. An average gives each split "
        "the same weight."
    )
    return Section(f"{pair.method} against {pair.baseline}, task by task", header, rows, [note])


def _stopped_early(methods: Methods) -> Section:
    """Return the comparison of the report's first pair, each run stopped at its best validation."""
    pair = pair_of(methods)
    if pair is None:
        return Section("", [], [])
    header, rows = stopped_early(methods, pair)
    note = (
        "In percent, each run at the evaluation with the best pass@k, the untrained policy included. One half of the questions "
        "chooses the evaluation, the other half is measured at it, and the other way round."
    )
    return Section("The same, each run stopped at its best validation", header, rows, [note])


def _pass_at_k(methods: Methods) -> Section:
    """Return pass@k: one row for each method on each split or average, and one column for each k."""
    ks = [
        k for k in HEADLINE_KS if any(k in points for of in methods.curves.values() for points in of.values())
    ]
    rows = []
    for name, of_methods in {**methods.curves, **methods.by_question}.items():
        for method, points in of_methods.items():
            rows.append([name, method, *(str(points[k]) if k in points else "–" for k in ks)])
    seeds = {method: ", ".join(str(run.seed) for run in runs) for method, runs in methods.runs.items()}
    alike = len(set(seeds.values())) == 1
    which = next(iter(seeds.values())) if alike else "; ".join(f"{m}: {s}" for m, s in seeds.items())
    first = next(iter(methods.runs.values()))[0]
    sizes = ", ".join(f"{split} {first.test[split]['num_questions']}" for split in methods.splits)
    notes = [
        f"In percent, with 95 % intervals by bootstrap over questions and seeds. Questions: {sizes}. Seeds: {which}."
    ]
    if methods.groups:
        averages = "; ".join(f"{group}: {', '.join(splits)}" for group, splits in methods.groups.items())
        notes.append(
            f"An average gives each split the same weight, one by question each question. {averages}."
        )
    return Section("Pass@k", ["on", "method", *(f"pass@{k}" for k in ks)], rows, notes)


def _differences(methods: Methods) -> Section:
    """Return the differences: a row for each pair of methods on a split or average, a column for each k."""
    found = {
        (c.method, c.baseline, c.quantity): MARKS[c.verdict] + c.difference.signed
        for c in methods.comparisons
    }
    ks = sorted({int(c.quantity.split("/")[2]) for c in methods.comparisons if c.quantity != ZERO_GRADIENT})
    rows = []
    for method, baseline in dict.fromkeys((c.method, c.baseline) for c in reversed(methods.comparisons)):
        ratio = ratio_of(methods, method, baseline)
        times = "–" if ratio is None else f"{ratio:.2g}×"
        zero = found.get((method, baseline, ZERO_GRADIENT), "–")
        for name in methods.parts:
            cells = [found.get((method, baseline, f"pass@k/{name}/{k}"), "–") for k in ks]
            rows.append([method, baseline, times, name, *cells, zero])
            zero = ""  # once for each pair: it belongs to training
    note = (
        "Differences in points with 95 % intervals. ▲ and ▼: beyond noise, at a p-value below "
        f"{100 * LEVEL:.0f} % after Holm's correction for all {len(methods.comparisons)} of them; the "
        "intervals are not corrected. Those of pass@k are paired over questions and seeds, those of the "
        "questions without gradient over iterations and seeds. The third column is how many times as many "
        "responses the first method sampled."
    )
    header = ["method", "against", "responses", "on", *(f"pass@{k}" for k in ks), "% without gradient"]
    return Section("What differs beyond noise", header, rows, [note])


def _responses(methods: Methods) -> Section:
    """Return the length, the truncation and the majority's accuracy of responses to each split.

    Only the first seed of each method is shown, if its responses were counted.
    """
    rows = []
    for split in methods.splits:
        for method, seeds in methods.runs.items():
            if "truncated" in (test := seeds[0].test[split]):
                shares = [f"{100 * test[name]:.1f}" for name in ("majority", "truncated")]
                rows.append(
                    [split, method, str(test["samples"]), shares[0], f"{test['length']:,.0f}", shares[1]]
                )
    note = (
        "Of the first seed: responses in all, questions in % whose most frequent answer is correct, tokens "
        "per response, responses in % that the limit ended."
    )
    header = ["split", "method", "responses", "majority", "tokens", "truncated"]
    return Section("Responses to test questions", header, rows, [note])


def _budgets(methods: Methods) -> Section:
    rows = []
    for method, used in methods.budgets[[*BUDGET_NAMES, "seconds"]].iterrows():
        zero = methods.zero_gradient[str(method)].to_numpy()  # [seeds, iterations]
        parts = zero, zero[:, : max(1, zero.shape[1] // 5)]
        shares = [f"{part.mean():.1f}" if part.size else "–" for part in parts]
        rows.append(
            [
                str(method),
                str(len(methods.runs[str(method)])),
                *(f"{number:,.0f}" for number in used),
                *shares,
            ]
        )
    notes = [
        "Means per seed. Seconds are those of training, on a machine that other runs may have shared. The "
        "last columns are the percentage of questions whose advantages are all zero, over all of training "
        "and over its first fifth: the advantage collapse rate (ACR, arXiv 2605.21125), said to predict how "
        "GRPO ends."
    ]
    trained = [run for seeds in methods.trained.values() for run in seeds]
    if len(methods.trained) > 1:
        amounts = {title: {run.ledger[name] for run in trained} for name, title in BUDGET_NAMES.items()}
        matched = [title for title, found in amounts.items() if len(found) == 1]
        notes.append(f"Equal in all trained runs: {', '.join(matched) or 'nothing'}.")
        notes.append(f"Not equal: {', '.join(title for title in amounts if title not in matched) or 'none'}.")
    pair = pair_of(methods)
    if pair is not None and (even := break_even_note(methods, pair)) is not None:
        notes.append(even)
    header = ["method", "seeds", *BUDGET_NAMES.values(), "seconds", "% without gradient", "at first"]
    return Section("Budgets", header, rows if methods.trained else [], notes)


def _training_questions(methods: Methods) -> Section:
    """Return the diagnoses of all diagnosed runs."""
    tables = [(str(run), *table_of(run.diagnosis)) for run in methods.every if run.diagnosis is not None]
    header = max((header for _, header, _ in tables), key=len, default=[])
    rows = [[name, *row] for name, of_run, rows in tables for row in rows if of_run == header]
    return Section("Training questions, original against rephrasings", ["run", *header], rows, [NOTE])


def _settings(methods: Methods) -> Section:
    """Return the settings in which the methods differ, with one row for each value of a setting."""
    rows = []
    for name, row in methods.differing_settings().items():
        having: dict[str, list[str]] = {}
        for method in methods.trained:
            having.setdefault(str(row[method]), []).append(method)
        rows += [[f"`{name}`", value, ", ".join(names)] for value, names in having.items()]
    return Section("All settings in which the trained methods differ", ["setting", "value", "methods"], rows)
