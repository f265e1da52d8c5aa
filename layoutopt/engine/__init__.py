"""The conflict engine: counts finished layouts at every lane. It knows nothing of models."""
