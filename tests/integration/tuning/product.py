"""A product that torch chooses a kernel for, on the CPU."""

import sys

import torch
import torch._inductor.config

torch._inductor.config.max_autotune = True
torch._inductor.config.max_autotune_gemm_backends = "ATEN,CPP"


@torch.compile(dynamic=False)
def product(a, b):
    return torch.bmm(a, b)


size = int(sys.argv[1])
a, b = torch.randn(2, size, 32), torch.randn(2, 32, 32)
with torch.no_grad():
    assert torch.allclose(product(a, b), a @ b, atol=1e-4)
