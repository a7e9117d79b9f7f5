"""Verdicts as rows, in the formats that somebody reads."""
