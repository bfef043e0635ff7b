"""Parts of the Overview, Near ties, Heatmap and Flips pages for a run of sparse sides."""
