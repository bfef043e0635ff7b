"""Named queries: what pages, commands and reports read of a run, aggregated by DuckDB."""
