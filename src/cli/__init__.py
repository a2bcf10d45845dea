"""Shell: `tagrpo-train`, `tagrpo-export`, `tagrpo-diff`, and the code that all commands share."""
