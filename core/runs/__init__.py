"""What a run is and where it lives: records, dumps, the run file and the store."""
