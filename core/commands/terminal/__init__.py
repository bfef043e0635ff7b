"""The terminal, for every command: output, options, how a command stops."""
