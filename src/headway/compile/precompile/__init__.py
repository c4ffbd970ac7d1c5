"""Make torch's precompile packages safe: no retracing, and no wrong results.

With `TORCH_CACHING_PRECOMPILE` torch stores what dynamo traced, but drops every guard that compares
identities: a model whose activation function was replaced would silently run the old one. Headway
records a description of each object behind those guards. A package is used only if all objects
match their descriptions, and its first result is compared with eager. This code runs inside the
job: standard library and torch only.
"""
