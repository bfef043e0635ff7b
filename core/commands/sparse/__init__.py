"""Commands on sparse sides: what engines send of their rows, compared and captured."""
