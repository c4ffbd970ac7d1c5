"""The archive of a compile cache: what is in it, where it lies, and whether it may be used."""
