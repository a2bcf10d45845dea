"""Removable: rephrasings, which are made, checked and audited before training. Import from the submodules."""
