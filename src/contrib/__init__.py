"""Removable: methods outside the core, one folder each: strategy, experiments, options and the paper's values."""
