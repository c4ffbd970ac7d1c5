"""Places, atomic writes, locks, codecs and signatures: everything that reads and writes files and URLs."""
