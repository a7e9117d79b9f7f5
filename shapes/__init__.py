"""The shape files that ship with moetune, one TOML per model."""
