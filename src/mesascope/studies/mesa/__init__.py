"""Studies of thesis chapter 3: mesa-optimisation in autoregressively trained networks."""
