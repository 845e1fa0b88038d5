"""The controller: composition root of the engine; it holds no rules."""
