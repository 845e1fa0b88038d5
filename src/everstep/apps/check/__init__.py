"""`everstep check`: every local source of this node asked once, for a person, a script, or a prolog."""
