"""What every command has of the terminal: its output, its options, how it stops."""
