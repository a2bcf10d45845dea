"""Shell: the questions as a LightningDataModule."""
