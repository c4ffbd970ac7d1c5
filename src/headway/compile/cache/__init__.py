"""Compile cache that jobs share: archives in a store, the local folder, and their transfer."""
