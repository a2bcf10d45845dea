"""The console scripts, and what they say."""
