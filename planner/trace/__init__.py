"""From a group's graph to its values: views become strides of loads, dimensions become factors."""
