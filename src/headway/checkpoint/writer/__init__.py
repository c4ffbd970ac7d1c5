"""The writer process: owns the staging buffers of a rank, writes them, and outlives the rank."""
