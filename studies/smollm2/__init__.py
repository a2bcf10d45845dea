"""SmolLM2-135M on products in several wordings: what its responses say before any training, and what training gains."""
