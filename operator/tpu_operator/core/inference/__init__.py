"""TPUInference: a model served by several roles, each replica of a role being one slice."""
