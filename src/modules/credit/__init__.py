"""Credit per token: `CreditInputs` → [T] advantages of one mini-batch. The methods are in `contrib`."""
