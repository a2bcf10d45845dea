"""One update by other libraries beside ours, at three shapes and at one that a seed draws.

    pip install --no-deps prefix-grouper==0.0.1.post1 liger-kernel==0.8.5      # beside the extra `bench`
    python benchmarks/peers.py --rounds 2 --json benchmarks/results/peers.json

Beside the ways of `workload.Updates`: Liger's fused head (`LigerFusedLinearGRPOLoss`, not compiled) on the padded
forward; prefix-grouper with all logits at once, as its examples have it, and with our head.
"""

import argparse
from collections.abc import Callable

import torch
import torch.nn.functional as F
from liger_kernel.chunked_loss import LigerFusedLinearGRPOLoss
from prefix_grouper import PrefixGrouper
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AttentionInterface
from update_step import measure
from workload import Updates, add_shape, report

from tagrpo.packing.batch import plan_micro_batches
from tagrpo.packing.head import Targets, head_scores, token_scores

SHAPES = {
    "many responses": {"questions": 1, "responses": 32, "prompt": 150, "mean": 100, "max": 300},
    "few responses": {"questions": 4, "responses": 4, "prompt": 150, "mean": 60, "max": 120},
    "long responses": {"questions": 1, "responses": 8, "prompt": 40, "mean": 160, "max": 300},
    # torch.randint of 1..3, 4..12, 20..250 and 20..120 in turn, by a generator with the seed 20260724; twice the mean.
    "drawn by a seed": {"questions": 3, "responses": 12, "prompt": 38, "mean": 28, "max": 56},
}
WAYS = [
    "trl",
    "trl_shared",
    "liger",
    "padding_free",
    "prefix_grouper",
    "prefix_grouper_our_head",
    "prefix_shared",
]


def grouper_attention(
    _module: object,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    _mask: object,
    *,
    grouper: PrefixGrouper,
    **_: object,
) -> tuple[Tensor, None]:
    """prefix-grouper's attention by SDPA; it brings masks of keys alone, as flash-attention takes them."""

    def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, mask, enable_gqa=True).transpose(1, 2)

    return grouper.forward(attend, query, key, value), None


AttentionInterface.register("prefix_grouper", grouper_attention)


class Peers(Updates):
    """`Updates`, and the ways of other libraries, in micro-batches of the same tokens."""

    def run(self, way: str) -> None:
        """One update; leaves gradients on the model."""
        head = self.model.lm_head
        others: dict[str, Callable[[], None]] = {
            "liger": self._liger,
            "prefix_grouper": lambda: self._grouped(
                lambda x, y: token_scores(head(x), y, 1.0, "detached").logprobs
            ),
            "prefix_grouper_our_head": lambda: self._grouped(
                lambda x, y: head_scores(x, head.weight, Targets.of(y, torch.arange(len(y)))[1]).logprobs
            ),
        }
        if way not in others:
            super().run(way)
            return
        self.model.set_attn_implementation("sdpa" if way == "liger" else "prefix_grouper")
        others[way]()

    def _liger(self) -> None:
        loss_of = LigerFusedLinearGRPOLoss(beta=0.0, compiled=False, use_ref_model=False, loss_type="grpo")
        for rows, inputs, targets, mask in self.padded_rows():
            hidden = self.model.model(**inputs, use_cache=False).last_hidden_state[
                :, -targets.shape[1] - 1 : -1
            ]
            loss = loss_of(
                hidden, self.model.lm_head.weight, targets, mask.float(), self.data.advantages[rows]
            )[0]
            (loss * len(rows) / len(self.data.responses)).backward()

    def _grouped(self, score: Callable[[Tensor, Tensor], Tensor]) -> None:
        data, lengths = self.data, self.data.lengths
        heads = torch.tensor([len(p) for p in data.prompts])
        for part in plan_micro_batches(data.prompts, data.prompt, data.responses, self.shape.token_budget):
            rows = part.sort().values
            prompts, sizes = data.prompt[rows].unique_consecutive(return_counts=True)
            groups = zip(prompts.tolist(), rows.split(sizes.tolist()), strict=True)
            grouper = PrefixGrouper([[int(heads[p]), *lengths[group].tolist()] for p, group in groups])
            prefix = torch.stack([data.prompts[p] for p in prompts.tolist()])
            suffix = pad_sequence([data.responses[row] for row in rows.tolist()], batch_first=True)
            for name, queries in (
                ("prefix_attn_mask", prefix.shape[1]),
                ("suffix_attn_mask", suffix.shape[1]),
            ):
                keys = getattr(grouper.group_info, name)
                causal = torch.ones(queries, keys.shape[1], dtype=torch.bool).tril(keys.shape[1] - queries)
                setattr(grouper.group_info, name, keys[:, None, None] & causal)
            mask = torch.arange(suffix.shape[1]) < lengths[rows, None]
            masks = torch.ones_like(prefix), mask.long()
            first = torch.arange(prefix.shape[1]).expand(len(prefix), -1)
            second = torch.arange(suffix.shape[1]).expand(len(suffix), -1) + prefix.shape[1]
            hidden = self.model.model(
                input_ids=grouper.concat_input(prefix, masks[0], suffix, masks[1]),
                position_ids=grouper.concat_input(first, masks[0], second, masks[1]),
                use_cache=False, grouper=grouper,
            ).last_hidden_state  # fmt: skip
            _, _, completions, _ = grouper.split_output(hidden, include_prefix_last=1)
            weight = (data.advantages / lengths)[rows].repeat_interleave(lengths[rows])
            (-(score(completions[:, :-1][mask], suffix[mask]) * weight).sum() / len(lengths)).backward()


def main() -> None:
    parser = argparse.ArgumentParser(description="One update by other libraries and by ours.")
    add_shape(parser)
    shape = parser.parse_args()
    torch.set_num_threads(1)
    chosen = {
        name: argparse.Namespace(**{**vars(shape), **sizes, "ways": WAYS}) for name, sizes in SHAPES.items()
    }
    figures = {name: {**measure(found, Peers), "shape": SHAPES[name]} for name, found in chosen.items()}
    report({"shapes": figures}, shape)


if __name__ == "__main__":
    main()
