"""Parts of the starter policies of the embedded tasks: examples, tokenizers, the network."""
