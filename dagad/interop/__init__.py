"""Neighbours: optimisers, samplers and frameworks that take an objective of dagad's, each in a module of its own."""
