"""The ULP heatmap page: its canvas and the routes that serve it."""
