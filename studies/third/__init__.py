"""The third edition: when do reformulations help, and why? A plan is frozen before its runs; see `plan.md`."""
