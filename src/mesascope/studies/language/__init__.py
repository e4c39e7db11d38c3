"""Studies of layers of language models: what they recall, and how well they predict text."""
