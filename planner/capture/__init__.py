"""From the FX graph that AOTAutograd hands to a compiler to a `Graph`."""
