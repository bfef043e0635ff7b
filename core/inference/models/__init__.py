"""Language models: loading, weights, memory, token texts, chats, dtypes."""
