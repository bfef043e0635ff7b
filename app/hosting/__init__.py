"""The gate in front of the dashboard: members pass, everybody else gets nothing."""
