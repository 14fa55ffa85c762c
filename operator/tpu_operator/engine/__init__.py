"""Effects: reading the cluster, carrying out plans, leading. Knows nothing of what a job is."""
