"""Studies of learning where to learn: sparse gradients in meta-learning and in continual learning."""
