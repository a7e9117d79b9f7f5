"""moetune finds the fastest correct tile configuration of a grouped mixture-of-experts kernel."""

__version__ = "0.1.0"
