"""Places, atomic writes, locks, codecs and signatures: all access to files and URLs."""
