"""Write the figures of benchmarks/results/*.json into benchmarks/RESULTS.md, between the marks of each table.

python benchmarks/tables.py
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from workload import MODELS

from tagrpo.analysis.sections import table
from tagrpo.files import write_section

ROOT = Path(__file__).resolve().parents[1]
RESULTS, DOCUMENT = ROOT / "benchmarks" / "results", ROOT / "benchmarks" / "RESULTS.md"
NAMES = {"trl": "TRL 1.16 `GRPOTrainer`", "padded": "padded"}
NAMES |= {
    "trl_shared": "TRL after `share_prefixes`",
    "padding_free": "padding-free",
    "prefix_shared": "prefix-shared",
}
NAMES |= {"liger": "padded, Liger's head", "prefix_grouper": "prefix-grouper, all logits"}
NAMES |= {"prefix_grouper_our_head": "prefix-grouper, our head"}
UPDATE = "update, seconds, response tokens/s, of matrix rate, peak MiB, times slower, gradient differs by"


def markdown(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    return "\n".join(table(head, rows, "---:"))


def update(figures: dict[str, Any]) -> str:
    rows, reference = [], next(iter(figures["seconds"]))
    for way, name in NAMES.items():
        if way not in figures["seconds"]:
            continue
        speedup = figures["speedup"].get(f"prefix_shared over {way}")
        rows.append([
            name, f"{figures['seconds'][way]:.2f}", f"{figures['tokens_per_second'][way]:.0f}",
            f"{100 * figures['share_of_matrix_rate'][way]:.0f} %", f"{figures['peak_mib'][way]:.0f}",
            f"{speedup['median']:.2f} ({speedup['best']:.2f})" if speedup else "",
            "reference" if way == reference else f"{figures['gradient_difference'][way]:.1e}",
        ])  # fmt: skip
    tokens = figures["tokens"]
    text = (
        f"Tokens: {tokens['response']} of responses, {tokens['distinct']} encoded, {tokens['repeated']} with a prompt "
        f"for each response, {tokens['padded']} padded. Matrix rate: {figures['matrix_gflops']:.0f} GFLOP/s."
    )
    return f"{markdown(UPDATE.split(', '), rows)}\n\n{text}"


def ceiling(figures: dict[str, Any]) -> str:
    """Savings by shared prefixes in a padding-free update, beside the most that they can save."""
    others = [RESULTS / f"update_step_{size}.json" for size in ("1.7b", "4b")]
    rows = []
    for found in [figures, *(json.loads(path.read_text()) for path in others if path.exists())]:
        tokens, vocabulary = found["tokens"], found["shape"]["vocabulary"]
        head = vocabulary * MODELS[found["shape"]["model"]][0]
        layers = found["parameters"] - head
        limit = tokens["repeated"] / tokens["distinct"]
        products = [layers * tokens[kind] + head * tokens["response"] for kind in ("repeated", "distinct")]
        reached = found["speedup"]["prefix_shared over padding_free"]["median"]
        rows.append([
            f"{layers / 1e6:.1f} M layers, {head / 1e6:.1f} M head", f"{limit:.2f}", f"{products[0] / products[1]:.2f}",
            f"{reached:.2f}", f"{100 * reached / limit:.0f} %", f"{100 * reached * products[1] / products[0]:.0f} %",
        ])  # fmt: skip
    head_line = [
        "model",
        "ceiling: ratio of tokens",
        "ratio of products, head included",
        "measured",
        "of the ceiling",
    ]
    return markdown([*head_line, "of the products"], rows)


def trl(figures: dict[str, Any]) -> str:
    """TRL as it is and with shared prefixes, in micro-batches of 8 and of 32 rows."""
    rows = []
    for size, found in ((8, figures), (32, json.loads((RESULTS / "trl_shared_32.json").read_text()))):
        seconds, memory = found["seconds"], found["peak_mib"]
        rows.append([
            size, f"{seconds['trl']:.1f}", f"{seconds['trl_shared']:.1f}",
            f"{found['speedup']['trl_shared over trl']['median']:.2f}", f"{memory['trl']:.0f}",
            f"{memory['trl_shared']:.0f}", f"{found['gradient_difference']['trl_shared']:.1e}",
        ])  # fmt: skip
    head = "rows of a micro-batch, seconds, after the call, times faster, peak MiB, after the call, gradient differs by"
    return markdown(head.split(", "), rows)


def peers(figures: dict[str, Any]) -> str:
    """One update by others and by ours, a row for each shape and way."""
    rows = []
    for name, found in figures["shapes"].items():
        title = "{}: {questions} × {responses}, {prompt} + {mean} … {max}".format(name, **found["shape"])
        for way in found["tokens_per_second"]:
            seconds, memory = found["seconds"][way], found["peak_mib"][way]
            slower = found["speedup"].get(f"prefix_shared over {way}", {"median": 1})["median"]
            differs = (
                f"{found['gradient_difference'][way]:.1e}"
                if way in found["gradient_difference"]
                else "reference"
            )
            rows.append([title, NAMES[way], f"{seconds:.2f}", f"{slower:.2f}", f"{memory:.0f}", differs])
            title = ""
    head = "shape, update, CPU seconds, times those of prefix-shared, peak MiB, gradient differs by"
    return markdown(head.split(", "), rows)


def dropping(figures: dict[str, Any]) -> str:
    found = figures["dropping"]
    faster = f"{found['speedup']['median']:.2f} ({found['speedup']['best']:.2f})"
    row = [f"{100 * found['uniform_questions']:.0f} %", faster, f"{found['gradient_difference']:.1e}"]
    return markdown(["uniform questions", "times faster", "gradient differs by"], [row])


def iteration(figures: dict[str, Any]) -> str:
    phases = ["sync", "generate", "score", "update", "diagnostics", "encoder", "overhead", "iteration"]
    rows = []
    for cell, found in figures["cells"].items():
        seconds, share = found["seconds"], found["share"]
        named = [f"{seconds[phase]:.3f}" if phase in seconds else "" for phase in phases]
        rows.append(
            [cell, *named, *(f"{100 * share[p]:.2f} %" if p in share else "" for p in ("sync", "overhead"))]
        )
    return markdown(["method/engine", *phases, "sync", "overhead"], rows)


def prefix_tree(figures: dict[str, Any]) -> str:
    """An update over the tree of prefixes against one that shares prompts alone, a row for each batch."""
    rows = []
    for name, row in figures["batches"].items():
        rows.append([
            name, row["response_tokens"], row["earlier_tokens"], row["tokens"], f"{row['formula']:.2f}",
            f"{row['faster']:.2f}", f"{100 * row['packing']:.1f} %", f"{row['earlier_mib']:.0f}", f"{row['mib']:.0f}",
            f"{row['differs']:.1e}",
        ])  # fmt: skip
    head = (
        "batch, response tokens, encoded earlier, encoded, by the formula, times faster, planning and packing, "
        "peak MiB earlier, peak MiB, gradient differs by"
    )
    return markdown(head.split(", "), rows)


def sampler(figures: dict[str, Any]) -> str:
    """Response tokens per second of three samplers, on two tasks."""
    names = {
        "transformers": "`rollout=transformers`",
        "generate": "`generate` of transformers",
        "vllm_cpu": "`rollout=vllm_cpu`, vLLM 0.32",
    }
    smollm2 = json.loads((RESULTS / "sampler_smollm2.json").read_text())
    rows = []
    for engine, name in names.items():
        cells: list[str] = []
        for found in (figures["engines"][engine], smollm2["engines"][engine]):
            cells += [f"{found['tokens_per_second']:.0f}", f"{found['ours_times']:.2f}"]
        rows.append([name, *cells])
    head = "sampler, embedded task: tokens/s, ours is faster, SmolLM2-135M: tokens/s, ours is faster"
    return markdown(head.split(", "), rows)


TABLES = {
    "sampler": ("sampler.json", sampler),
    "prefix-tree": ("prefix_tree.json", prefix_tree),
    "ceiling": ("update_step.json", ceiling),
    "update": ("update_step.json", update),
    "trl": ("trl_shared_8.json", trl),
    "smollm2-trl": ("iteration_smollm2_trl.json", iteration),
    "peers": ("peers.json", peers),
    "dropping": ("dropping.json", dropping),
    "iteration": ("iteration.json", iteration),
    "gpu-update": ("gpu-update.json", update),
    "gpu-compiled": ("gpu-compiled.json", update),
    "gpu-4b": ("gpu-4b.json", update),
    "gpu-peers": ("gpu-peers.json", update),
    "gpu-sdpa": ("gpu-sdpa.json", update),
    "gpu-dropping": ("gpu-dropping.json", dropping),
}


def main() -> None:
    for name, (file, make) in TABLES.items():
        made = "*Not measured yet.*"
        if (path := RESULTS / file).exists():
            figures = json.loads(path.read_text())
            made = f"{make(figures)}\n\n{figures['machine']}, torch {figures['torch']}."
        write_section(DOCUMENT, name, made)


if __name__ == "__main__":
    main()
