"""Record and narrow autotuning: Triton kernels, generated kernels, max_autotune templates."""
