"""The second study: the papers' claims on three tasks, with verdicts that can go either way."""
