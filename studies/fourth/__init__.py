"""When pooling and anchoring gain more together than alone: a replication that is planned, not frozen and not run."""
