"""ULPscope's core: numerics, run files, captures and the command line. No user interface is imported here."""

__version__ = "0.2.0"
