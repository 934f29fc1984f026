"""The search space of one group: layouts, block sizes and warps, judged by the cost model."""
