"""mesascope: an instrument for the learning algorithms inside neural networks."""
