"""What the Overview, Near ties, Heatmap and Flips pages show of a run of sparse sides."""
