"""Judging what a node says when it is asked: windows and thresholds as pure functions, apart from the reading."""
