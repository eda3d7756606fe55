"""The library beside other tools that merge and prune networks, on the same networks and the same images."""
