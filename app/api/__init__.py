"""HTTP API, in the process of the pages; docs/reference/api.md shows it with curl."""
