"""Rephrasings made, checked and audited before training. Import from the modules: this package stays light."""
