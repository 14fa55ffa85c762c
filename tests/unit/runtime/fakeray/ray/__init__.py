"""As much of Ray as the launcher can see of it, without a cluster: nodes are files of a directory."""
