"""Where schedulers look: the price of an eviction, told to each of them in its own way."""
