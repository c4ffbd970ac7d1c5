"""Optimizer steps inside a CUDA graph, with a save right before the capture."""

import torch
from torch import nn

model = nn.Linear(64, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x = torch.randn(32, 64, device="cuda")


def step() -> None:
    optimizer.zero_grad(set_to_none=False)
    model(x).sum().backward()
    optimizer.step()


side = torch.cuda.Stream()
with torch.cuda.stream(side):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(side)
torch.save(model.state_dict(), "before.pt")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    step()
for _ in range(20):
    graph.replay()
torch.cuda.synchronize()
print("replayed", flush=True)
