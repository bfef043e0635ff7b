"""The gallery: its filters, its table, the actions on the ticked runs, and the trash."""
