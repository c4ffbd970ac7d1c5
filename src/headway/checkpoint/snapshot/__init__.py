"""A moment of the training as an image in memory, taken while the training goes on."""
