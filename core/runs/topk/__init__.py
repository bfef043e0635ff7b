"""Lists: some tokens of each row (the top-k, or the chosen one), as servers send them."""
