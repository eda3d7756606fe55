"""Other tools behind one interface: each takes the networks of a case and returns one network.

Nothing of their code is here. Torch-Pruning is a package; the others are run from a clone that the user names.
"""
