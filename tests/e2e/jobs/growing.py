"""A compiled function that is called with three sizes; torch knows it by the path of this file."""

import torch

graphs = []


def closure():
    """torch 2.13 knows one by a number that each process has anew."""

    def inner(x):
        return x + 1

    return lambda x: inner(x) * 2


def backend(graph, inputs):
    graphs.append(graph)
    return graph.forward


def compiled():
    """How often it was compiled."""
    call = torch.compile(closure(), backend=backend)
    for size in (4, 5, 6):
        call(torch.ones(size))
    return len(graphs)
