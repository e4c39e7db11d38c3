"""Studies of the ICML paper: in-context learning as gradient descent."""
