"""The gallery: what it is asked for, its table, and what is done with the ticked runs."""
