"""Removable: rephrasings, made, checked and audited before training. Import from the modules."""
