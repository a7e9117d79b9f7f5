"""The nouns: frozen facts without I/O."""
