"""TA-GRPO with rephrasings only where the original gives no gradient: tried by no paper."""
