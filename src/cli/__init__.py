"""Shell: `tagrpo-train`, `tagrpo-export`, `tagrpo-diff`, and what all console scripts say."""
