"""The run file: its schema, its connection, its records and the tiles that its arrays lie in."""
