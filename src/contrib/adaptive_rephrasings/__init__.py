"""TA-GRPO that adds rephrasings if the original is unlikely to give a gradient. Not from a paper."""
