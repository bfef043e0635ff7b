"""Who may use a hosted server: passwords, tokens, and when a server must not start."""
