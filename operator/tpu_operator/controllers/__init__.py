"""Where a kind's pure decisions meet the engine: what they read, and how that leads back to a key."""
