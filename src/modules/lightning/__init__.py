"""Shell: the policy as a LightningModule, its strategy and its accelerator."""
