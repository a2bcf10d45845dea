"""TA-GRPO with rephrasings only where the original gives no gradient; not from a paper."""
