"""Make, check and audit rephrasings before training. This package imports nothing: import its modules."""
