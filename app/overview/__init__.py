"""Parts of the Overview page."""

OF_ROLLOUTS = {"largest difference": "|r|, nats", "KL": "KL (k3), nats"}  # and their legends
PARTS = ("Figures", "Distribution", "Depends on", "Sequences", "Steps")  # of trainer vs. rollout
