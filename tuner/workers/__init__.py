"""Worker processes that compile and measure, and what they are asked."""
