"""The commands of the command line, a module for each kind; torch is imported inside those
functions that run a model.
"""
