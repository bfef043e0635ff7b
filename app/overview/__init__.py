"""Parts of the Overview page."""

OF_ROLLOUTS = {"largest difference": "|r|, nats", "KL": "KL (k3), nats"}  # and their legends
PARTS = ("Steps", "Figures", "Distribution", "Depends on", "Sequences")  # of trainer vs. rollout
