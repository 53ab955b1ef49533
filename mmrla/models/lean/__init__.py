"""Memory-saving forms of the layers, and the fused form for inference."""
