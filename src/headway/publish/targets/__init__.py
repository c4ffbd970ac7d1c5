"""Forms in which a model is served; each target is one module."""
