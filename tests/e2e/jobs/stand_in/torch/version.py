__version__ = "2.13.0"
git_version = "stand-in"
