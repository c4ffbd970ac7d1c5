"""What an eviction costs, who is evicted, and a simulator of clusters that proves it."""
