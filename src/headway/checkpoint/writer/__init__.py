"""A process beside each rank that holds the images and writes them; it outlives the rank."""
