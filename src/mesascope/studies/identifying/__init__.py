"""Studies of what can be told of a learner from outside."""
