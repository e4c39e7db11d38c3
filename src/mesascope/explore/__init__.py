"""The page in the browser: `mesascope explore`. Its numbers come from learners, lenses, runs and identification."""
