"""Simple causes of a difference: fitted to half of a pair's rows, scored on the other half, named only above a bar."""
