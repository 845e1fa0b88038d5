"""Everstep's agent beside other agents, on one stream of kernel lines: what ``benchmarks/agent.py`` is made of."""
