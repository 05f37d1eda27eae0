"""The coverage study: how often intervals cover, by world, size, estimator and verdict."""
