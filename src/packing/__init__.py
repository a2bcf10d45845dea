"""Core: log-probs of responses to prompts, with each distinct prefix encoded once, no padding and few logits.

Only torch and transformers are needed. With responses to prompts::

    policy = CausalPolicy(model)                  # of transformers, with or without adapters of peft
    batch = pack(prompts, prompt, responses)      # lists of token ids; prompt[r] is the row of r's prompt in prompts
    scores = policy(batch.to(device))             # a forward over the distinct tokens

`scores.logprobs` and `scores.entropy` are [T], with the responses concatenated in the order of `batch.rows`:
`dict(zip(batch.rows.tolist(), scores.logprobs.split(batch.lengths.tolist())))` has the log-probs of each
response by its row. Gradients are those of one plain forward per response. A loss that is a sum over tokens costs
less if it is passed as `loss=`.

Models that can't share prefixes (`supports_prefix_sharing` says why) are scored in padded batches.
`tagrpo.packing.trl.share_prefixes(trainer)` makes TRL's `GRPOTrainer` share prefixes.
"""

from .attention import supports_prefix_sharing
from .batch import PackedBatch, pack
from .head import TokenLoss, TokenScores
from .policy import CausalPolicy

__all__ = ["CausalPolicy", "PackedBatch", "TokenLoss", "TokenScores", "pack", "supports_prefix_sharing"]
