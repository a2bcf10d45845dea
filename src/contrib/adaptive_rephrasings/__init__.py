"""TA-GRPO with rephrasings only if the original is unlikely to give a gradient; not from a paper."""
