"""torch's precompile packages, made safe: nothing is traced again, and no number may be wrong.

With `TORCH_CACHING_PRECOMPILE` torch keeps what dynamo traced, but drops every guard that compares
identities: a model whose activation is another function runs the old one, silently. Here the
objects behind those guards are known by what they are. A package is used only if all of them are
the same as when it was made, and its first result is compared with eager. Runs inside the job:
standard library and torch only.
"""
