"""Studies of the identification of learners from their predictions."""
