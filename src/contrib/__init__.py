"""Removable: methods outside the core, one folder each, with experiments, options and the paper's values."""
