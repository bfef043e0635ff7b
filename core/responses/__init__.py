"""What servers send: responses with the top tokens of each position, read, aligned and paired."""
