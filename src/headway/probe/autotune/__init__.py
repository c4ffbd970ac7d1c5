"""Record and narrow autotuning of Triton kernels, generated kernels and max_autotune templates."""
