"""Studies of chapter 3 of von Oswald (2024): mesa-optimisation in autoregressively trained networks."""
