"""PSR, NSR and W-REINFORCE (arXiv 2506.01347): advantages from the verdict alone, without a baseline."""
