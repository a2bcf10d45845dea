"""Parts of all benchmarks: models, experience, ways to update on it, clocks and memory."""

import argparse
import ctypes
import json
import platform
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from tagrpo.files import write_text
from tagrpo.modules.policy.sharding import compile_layers, decoder_layers
from tagrpo.packing.attention import PREFIX_ATTENTION
from tagrpo.packing.batch import PackedBatch, Paths, pack, plan_micro_batches
from tagrpo.packing.head import Targets, token_scores
from tagrpo.packing.policy import CausalPolicy
from tagrpo.packing.trl import METHOD, share_prefixes

SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
SIZES += ("num_key_value_heads", "head_dim")
MODELS = {
    "20m": (384, 1024, 8, 6, 2, 64),
    "tiny": (64, 128, 2, 2, 1, 32),
    "qwen3_1.7b": (2048, 6144, 28, 16, 8, 128),
    "qwen3_4b": (2560, 9728, 36, 32, 8, 128),
}
"""Name → its `SIZES`."""
WAYS = ("trl", "trl_shared", "padded", "padding_free", "prefix_shared")
PACKED = ("padding_free", "prefix_shared", "dropped")
"""Ways that can use compiled layers."""


@dataclass(frozen=True)
class Experience:
    """Random tokens; the responses of a question stand together."""

    prompts: list[Tensor]
    prompt: Tensor
    responses: list[Tensor]
    advantages: Tensor

    @property
    def lengths(self) -> Tensor:
        return torch.tensor([len(r) for r in self.responses])

    @property
    def tokens(self) -> dict[str, int]:
        """Of responses; distinct prefixes, and those that predict; responses each behind its prompt; padded rows."""
        response, longest = int(self.lengths.sum()), max(map(len, self.responses))
        heads = torch.tensor([len(p) for p in self.prompts])
        packed = pack(self.prompts, self.prompt, self.responses)
        return {
            "response": response,
            "distinct": packed.input_ids.shape[1],
            "states": len(packed.states),
            "repeated": response + int(heads[self.prompt].sum()),
            "padded": len(self.responses) * (int(heads.max()) + longest),
        }


def add_shape(parser: argparse.ArgumentParser) -> None:
    """Options of the shape; defaults are those that the figures in benchmarks/RESULTS.md are for."""
    parser.add_argument("--questions", type=int, default=1)
    parser.add_argument("--responses", type=int, default=32, help="per question")
    parser.add_argument("--prompt", type=int, default=150, help="tokens of each prompt")
    parser.add_argument("--mean", type=int, default=100, help="tokens of a response")
    parser.add_argument(
        "--max", type=int, default=300, help="tokens of the longest response of each question"
    )
    parser.add_argument("--model", choices=sorted(MODELS), default="20m", help="randomly initialised Qwen3")
    parser.add_argument("--vocabulary", type=int, default=16384)
    parser.add_argument(
        "--token-budget", type=int, default=4096, help="per micro-batch, the same for each way"
    )
    parser.add_argument("--checkpointing", action="store_true", help="gradient checkpointing, for each way")
    parser.add_argument(
        "--compile", action="store_true", help="compile decoder layers; packed ways on a GPU only"
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--rounds", type=int, default=5, help="all ways run in turn in each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="file to write the figures to")


def experience(shape: argparse.Namespace) -> Experience:
    """Log-normal lengths about the mean; one response of each question has the greatest length."""
    generator = torch.Generator().manual_seed(shape.seed)
    vocabulary, n = shape.vocabulary, shape.questions * shape.responses
    spread = torch.randn(n, generator=generator).mul(0.6).exp()
    lengths = (spread * shape.mean / spread.mean()).long().clamp(min(10, shape.max), shape.max)
    lengths[:: shape.responses] = shape.max
    prompts = [
        torch.randint(vocabulary, (shape.prompt,), generator=generator) for _ in range(shape.questions)
    ]
    responses = [torch.randint(vocabulary, (length,), generator=generator) for length in lengths.tolist()]
    return Experience(
        prompts, torch.arange(n) // shape.responses, responses, torch.randn(n, generator=generator)
    )


def build(shape: argparse.Namespace) -> Qwen3ForCausalLM:
    """A randomly initialised Qwen3."""
    torch.manual_seed(shape.seed)
    sizes = dict(zip(SIZES, MODELS[shape.model], strict=True))
    sizes |= {"vocab_size": shape.vocabulary, "max_position_embeddings": shape.prompt + shape.max}
    config = Qwen3Config(**sizes, tie_word_embeddings=True, bos_token_id=None)
    with torch.device(shape.device):
        return Qwen3ForCausalLM(config).to(getattr(torch, shape.dtype)).train()


class Updates:
    """The same gradient by each of `WAYS`: forward, GRPO's loss, backward of one optimizer step; entropy as a metric.

    - trl: `GRPOTrainer.training_step` of TRL on micro-batches of as many padded rows as the token budget holds;
    - trl_shared: the same after `share_prefixes(trainer)`;
    - padded: the model's own forward on rows padded to the longest of a micro-batch, all logits of it at once;
    - padding_free: packed, the prompt before each response;
    - prefix_shared: packed, the prompt once for its responses;
    - dropped: the same, without responses whose advantage is zero.
    """

    def __init__(self, shape: argparse.Namespace, data: Experience, ways: Iterable[str] = WAYS) -> None:
        self.shape, self.data = shape, data
        self.model = build(shape)
        self.policy = CausalPolicy(self.model)
        self.compiled: dict[Any, Any] = {}
        if shape.compile and shape.device == "cuda":  # attention on a CPU has another graph for every batch
            compile_layers(self.policy)
            self.compiled = {layer: layer.forward for layer in decoder_layers(self.policy)}
        self.trainer = trl_trainer(self.model, shape, data) if {"trl", "trl_shared"} & {*ways} else None
        if self.trainer is not None:
            share_prefixes(self.trainer)
            self.shared = {name: vars(self.trainer).pop(name) for name in (METHOD, "_prepare_inputs")}

    def run(self, way: str) -> None:
        """One update; leaves gradients on the model. Packed ways alone use compiled layers."""
        for layer, forward in self.compiled.items():
            if way in PACKED:
                layer.forward = forward
            else:
                vars(layer).pop("forward", None)
        self.model.set_attn_implementation(
            "sdpa" if way in ("trl", "trl_shared", "padded") else PREFIX_ATTENTION
        )
        if self.shape.checkpointing:
            self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        {
            "trl": lambda: self._trl({}),
            "trl_shared": lambda: self._trl(self.shared),
            "padded": self._padded,
            "padding_free": lambda: self._packed(share_prefix=False),
            "prefix_shared": lambda: self._packed(share_prefix=True),
            "dropped": lambda: self._packed(share_prefix=True, drop=True),
        }[way]()

    def gradient(self) -> Tensor:
        """The gradient as one float32 vector on the CPU."""
        return torch.cat(
            [p.grad.flatten().float().cpu() for p in self.model.parameters() if p.grad is not None]
        )

    def _trl(self, methods: Mapping[str, Any]) -> None:
        assert self.trainer is not None
        for name in self.shared:
            vars(self.trainer).pop(name, None)
        vars(self.trainer).update(methods)
        self.trainer._step, self.trainer._buffered_inputs = 0, None
        for _ in range(self.trainer.args.gradient_accumulation_steps):
            self.trainer.training_step(self.model, [{}], None)

    def padded_rows(self) -> Iterator[tuple[Tensor, dict[str, Tensor], Tensor, Tensor]]:
        """Micro-batches of r rows: which, the model's inputs [r, P + C], and their targets and mask [r, C]."""
        data, device = self.data, self.model.device
        rows_at_once = max(self.shape.token_budget // (self.shape.prompt + self.shape.max), 1)
        for rows in torch.arange(len(data.responses)).split(rows_at_once):
            targets = pad_sequence([data.responses[row] for row in rows.tolist()], batch_first=True)
            mask = torch.arange(targets.shape[1]) < data.lengths[rows, None]
            ids = torch.cat([torch.stack([data.prompts[p] for p in data.prompt[rows].tolist()]), targets], 1)
            whole = torch.cat([torch.ones(len(rows), self.shape.prompt, dtype=torch.bool), mask], 1)
            inputs = {"input_ids": ids.to(device), "attention_mask": whole.to(device)}
            yield rows, inputs, targets.to(device), mask.to(device)

    def _padded(self) -> None:
        for rows, inputs, targets, mask in self.padded_rows():
            weight = self.data.advantages[rows, None].to(mask.device) / mask.sum(1, keepdim=True) * mask
            out = self.model(**inputs, logits_to_keep=targets.shape[1] + 1, use_cache=False)
            logprobs = token_scores(
                out.logits[:, :-1].flatten(0, 1), targets.flatten(), 1.0, "detached"
            ).logprobs
            (-(logprobs * weight.flatten()).sum() / len(self.data.responses)).backward()

    def _packed(self, share_prefix: bool, drop: bool = False) -> None:
        data, lengths = self.data, self.data.lengths
        rows = (data.advantages != 0).nonzero()[:, 0] if drop else torch.arange(len(lengths))
        make = pack if share_prefix else pack_separately
        heads = [data.prompts[p] for p in data.prompt[rows].tolist()]
        if not share_prefix:  # they count as if each began differently
            heads = [ids + place * self.shape.vocabulary for place, ids in enumerate(heads)]
        responses = [data.responses[row] for row in rows.tolist()]
        for part in plan_micro_batches(heads, torch.arange(len(heads)), responses, self.shape.token_budget):
            batch = make(data.prompts, data.prompt, data.responses, rows[part])
            weight = (
                (data.advantages / lengths)[batch.rows].repeat_interleave(batch.lengths).to(self.model.device)
            )

            def loss(tokens: slice | Tensor, logprobs: Tensor, _: object, weight: Tensor = weight) -> Tensor:
                return -(logprobs * weight[tokens]).sum() / len(lengths)

            scores = self.policy(batch.to(self.model.device), entropy="detached", loss=loss)
            scores.loss.backward()


def pack_separately(
    prompts: list[Tensor], prompt: Tensor, responses: list[Tensor], rows: Tensor
) -> PackedBatch:
    """`pack` for an update that shares nothing: every response behind a prompt of its own."""
    each = [pack(prompts, prompt, responses, row[None]) for row in rows]
    sizes = torch.tensor([batch.input_ids.shape[1] for batch in each])
    starts = (sizes.cumsum(0) - sizes).tolist()
    states = torch.cat([batch.states + start for batch, start in zip(each, starts, strict=True)])
    lengths = torch.cat([batch.lengths for batch in each])
    _, predicted = Targets.of(torch.cat([batch.targets for batch in each]), states)
    return PackedBatch(
        input_ids=torch.cat([batch.input_ids for batch in each], 1),
        position_ids=torch.cat([batch.position_ids for batch in each], 1),
        ends=torch.cat([batch.ends + start for batch, start in zip(each, starts, strict=True)]),
        states=states,
        predicted=predicted,
        response=torch.repeat_interleave(lengths),
        lengths=lengths,
        rows=rows,
        paths=Paths(torch.arange(int(sizes.sum())), sizes, torch.zeros_like(sizes), torch.arange(len(rows))),
    )


def grpo_trainer(
    model: Any, reward: Callable[..., Any], rows: list[Any], tokenizer: Any, **options: Any
) -> Any:
    """TRL's `GRPOTrainer` without its default of gradient checkpointing, and without reports."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    quiet = {"output_dir": tempfile.mkdtemp(), "report_to": [], "disable_tqdm": True}
    args = GRPOConfig(**quiet, bf16=False, loss_type="grpo", gradient_checkpointing=False, **options)
    return GRPOTrainer(model, reward, args, Dataset.from_list(rows), processing_class=tokenizer)


def trl_trainer(model: PreTrainedModel, shape: argparse.Namespace, data: Experience) -> Any:
    """A `GRPOTrainer` whose generation and scoring give it `data`; one optimizer step takes all of it."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    rows = len(data.responses)
    width = max(shape.token_budget // (shape.prompt + shape.max), 1)
    width = max(size for size in range(1, width + 1) if rows % size == 0)
    words = Tokenizer(models.WordLevel({"<pad>": 0, "</s>": 1}, unk_token="<pad>"))
    trainer = grpo_trainer(
        model,
        lambda completions, **_: [0.0] * len(completions),
        [{"prompt": "x"}] * rows,
        PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="</s>"),
        use_cpu=shape.device == "cpu", per_device_train_batch_size=width, gradient_accumulation_steps=rows // width,
        num_generations=shape.responses, max_completion_length=shape.max, beta=0.0,
    )  # fmt: skip
    ids = pad_sequence(data.responses, batch_first=True)
    mask = (torch.arange(ids.shape[1]) < data.lengths[:, None]).long()
    prompt = torch.stack([data.prompts[p] for p in data.prompt.tolist()])
    batch = {
        "prompt_ids": prompt, "prompt_mask": torch.ones_like(prompt), "completion_ids": ids, "completion_mask": mask,
        "advantages": data.advantages, "num_items_in_batch": mask.sum(),
    }  # fmt: skip
    batch = {name: value.to(model.device) for name, value in batch.items()}
    trainer._generate_and_score_completions = lambda _: batch
    trainer.current_gradient_accumulation_steps = rows // width
    model.train()
    return trainer


# ---------------------------------------------------------------------- clocks and memory


def seconds(run: Callable[[], object], device: str) -> float:
    """CPU seconds of this process, whoever else uses the machine; on a GPU wall seconds."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    if device == "cuda":
        torch.cuda.synchronize()
    start = clock()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    return clock() - start


def peak_memory(run: Callable[[], object], device: str = "cpu") -> int:
    """Bytes that `run` held at most, beyond what was held before. On a CPU: resident pages, Linux only."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    run()
    return _status("VmHWM") - before


def _status(name: str) -> int:
    return 1024 * int(re.findall(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())[0])


def matrix_rate(device: str, dtype: torch.dtype) -> float:
    """FLOP per second of products of square matrices alone: what the machine can do."""
    side, repeats = (2048, 3) if device == "cpu" else (8192, 20)
    square = torch.randn(side, side, device=device, dtype=dtype)

    def multiply() -> None:
        for _ in range(repeats):
            square @ square

    return 2 * side**3 * repeats / seconds(multiply, device)


def machine(device: str) -> str:
    """The machine that the figures were measured on."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    names = Path("/proc/cpuinfo").read_text() if platform.system() == "Linux" else ""
    found = re.search(r"model name\s*:\s*(.+)", names)
    return f"{found[1] if found else platform.processor()}, {torch.get_num_threads()} threads"


def report(figures: Mapping[str, object], options: argparse.Namespace) -> None:
    """Print what was measured where and with which options, and write it to the file `options.json`, where named."""
    shape = {name: value for name, value in vars(options).items() if name != "json"}
    device = shape.get("device", "cpu")
    figures = {"machine": machine(device), "torch": torch.__version__, "shape": shape, **figures}
    text = json.dumps(figures, indent=2, default=str)
    print(text)
    if options.json is not None:
        write_text(options.json, text + "\n")
