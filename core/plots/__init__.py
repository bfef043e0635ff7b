"""Figures of plotly, those of the dashboard's pages and those of a run by name."""
