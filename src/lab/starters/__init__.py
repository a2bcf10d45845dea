"""What starter policies of the embedded tasks are made from."""
